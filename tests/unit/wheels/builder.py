"""Makes small wheels with the standard library's zipfile, whole or with one thing wrong."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

METADATA = (
    "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: {licence}\n{extra}\nLong text\nVersion: 9\n"
)
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record_of(files: Mapping[str, bytes], dist_info: str) -> str:
    rows = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items() if not name.endswith("/")]
    return "\n".join([*rows, f"{dist_info}/RECORD,,"]) + "\n"


def build_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    tag: str = "py3-none-any",
    build: str = "",
    licence: str = "BSD-3-Clause",
    metadata: str = "",
    record: str | None = None,
    method: int = zipfile.ZIP_DEFLATED,
    modes: Mapping[str, int] | None = None,
) -> Path:
    """A wheel of these files; `record` replaces the right RECORD."""
    stem = f"{name.replace('-', '_')}-{version}"
    dist_info = f"{stem}.dist-info"
    contents = dict(files)
    text = METADATA.format(name=name, version=version, licence=licence, extra=metadata)
    contents[f"{dist_info}/METADATA"] = text.encode()
    contents[f"{dist_info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    contents[f"{dist_info}/RECORD"] = (record if record is not None else record_of(contents, dist_info)).encode()
    path = folder / f"{stem}{'-' + build if build else ''}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in contents.items():
            info = zipfile.ZipInfo(member, (2024, 5, 6, 7, 8, 10))
            info.compress_type = method
            info.create_system = 3
            info.external_attr = (modes or {}).get(member, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    return path
