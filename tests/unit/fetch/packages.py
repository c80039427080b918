"""Small real wheels and indexes of them, for tests of fetching, building and publishing."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Package:
    """A wheel to be made."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    extras: tuple[str, ...] = ()
    requires_python: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    build: str = ""
    licence: str = ""

    @property
    def filename(self) -> str:
        build = f"-{self.build}" if self.build else ""
        return f"{self.name.replace('-', '_')}-{self.version}{build}-{self.tag}.whl"

    @property
    def metadata(self) -> bytes:
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"License: {self.licence}"] if self.licence else []
        lines += [f"Requires-Python: {self.requires_python}"] if self.requires_python else []
        lines += [f"Requires-Dist: {line}" for line in self.requires]
        lines += [f"Provides-Extra: {extra}" for extra in self.extras]
        return ("\n".join(lines) + "\n").encode()

    def wheel(self) -> bytes:
        """The bytes of the wheel, the same every time."""
        info = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        module = self.name.replace("-", "_")
        tags = "".join(f"Tag: {tag}\n" for tag in _tags(self.tag))
        wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode()
        files = dict(self.files) or {f"{module}/__init__.py": f"__version__ = {self.version!r}\n".encode()}
        files |= {f"{info}/METADATA": self.metadata, f"{info}/WHEEL": wheel}
        rows = [f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items()]
        files[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def _tags(tag: str) -> list[str]:
    pythons, abis, platforms = (part.split(".") for part in tag.split("-"))
    return [f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms]


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def html_index(packages: Iterable[Package], *, prefix: str = "/files/", metadata: bool = False) -> dict[str, bytes]:
    """Pages and files of a PEP 503 index, by path."""
    site: dict[str, bytes] = {}
    pages: dict[str, list[str]] = {}
    for package in packages:
        data = package.wheel()
        site[prefix + package.filename] = data
        attributes = f' data-requires-python="{package.requires_python}"' if package.requires_python else ""
        if metadata:
            site[prefix + package.filename + ".metadata"] = package.metadata
            attributes += f' data-core-metadata="sha256={hashlib.sha256(package.metadata).hexdigest()}"'
        digest = hashlib.sha256(data).hexdigest()
        link = f'<a href="{prefix}{package.filename}#sha256={digest}"{attributes}>{package.filename}</a>'
        pages.setdefault(package.name, []).append(link)
    for name, links in pages.items():
        site[f"/simple/{name}/"] = ("<!DOCTYPE html><html><body>" + "<br/>".join(links) + "</body></html>").encode()
    return site


def json_page(packages: Iterable[Package], *, prefix: str = "/files/") -> bytes:
    """One project's page as PEP 691 JSON."""
    files = []
    for package in packages:
        data = package.wheel()
        files.append(
            {
                "filename": package.filename,
                "url": prefix + package.filename,
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                "requires-python": package.requires_python or None,
                "yanked": False,
                "core-metadata": {"sha256": hashlib.sha256(package.metadata).hexdigest()},
            }
        )
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "x", "files": files}).encode()
