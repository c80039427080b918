"""Makes small images as OCI layouts, and reads them with the standard library alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

TIME = 1_700_000_000
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
PLAIN = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
PACKED: dict[str, Callable[[bytes], bytes]] = {
    GZIP: lambda data: gzip.compress(data, mtime=0),
    ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
    PLAIN: lambda data: data,
}


@dataclass
class TarFile:
    """One member for `tar_of`."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    pax: dict[str, str] = field(default_factory=dict)


def tar_of(members: Sequence[TarFile] | Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of these members in their order; a name that ends with a slash is a folder."""
    if isinstance(members, Mapping):
        members = [TarFile(name, data) for name, data in members.items()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type = tarfile.DIRTYPE if member.name.endswith("/") else member.kind
            info.linkname, info.mode, info.uid, info.mtime = member.link, member.mode, member.uid, TIME
            info.pax_headers = member.pax
            if info.type in (tarfile.REGTYPE, tarfile.CONTTYPE):
                info.size = len(member.data)
            archive.addfile(info, io.BytesIO(member.data))
    return buffer.getvalue()


class Layout:
    """An OCI layout on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data), **more}

    def image(
        self,
        layers: Sequence[bytes],
        *,
        packing: Sequence[str] | str = GZIP,
        config: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
        architecture: str = "amd64",
    ) -> dict[str, Any]:
        """Store an image of these tars; its descriptor."""
        kinds = [packing] * len(layers) if isinstance(packing, str) else packing
        rows = [self.blob(PACKED[kind](tar), kind) for tar, kind in zip(layers, kinds, strict=True)]
        settings = {
            "created": "2024-01-02T03:04:05Z",
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Labels": {"a": "b"}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in layers]},
            "history": [{"created": "2024-01-02T03:04:05Z", "created_by": f"layer {n}"} for n, _ in enumerate(layers)],
            "x-unknown": {"kept": ["ä", 1]},
            **(config or {}),
        }
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(json.dumps(settings).encode(), CONFIG),
            "layers": rows,
            **(manifest or {}),
        }
        return self.blob(json.dumps(document).encode(), document["mediaType"])

    def name(self, descriptor: Mapping[str, Any], ref: str = "latest") -> str:
        """Give an image a name; how the command line names it."""
        row = {**descriptor, "annotations": {"org.opencontainers.image.ref.name": ref}}
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
        return f"oci:{self.folder}:{ref}"


def stock(folder: Path, layers: Sequence[bytes], **more: Any) -> str:
    """An image with one name."""
    layout = Layout(folder)
    return layout.name(layout.image(layers, **more))


@dataclass(frozen=True)
class ReadImage:
    """An image as the standard library reads it; every digest and size was checked."""

    manifest: dict[str, Any]
    config: dict[str, Any]
    tars: list[bytes]
    digest: str

    def files(self, layer: int) -> dict[str, bytes]:
        with tarfile.open(fileobj=io.BytesIO(self.tars[layer])) as archive:
            found = {}
            for info in archive:
                if info.isreg():
                    file = archive.extractfile(info)
                    assert file is not None
                    found[info.name] = file.read()
            return found


def read_image(folder: Path, digest: str | None = None) -> ReadImage:
    """The image of a layout (its only one), or one by digest."""
    blobs = folder / "blobs"

    def blob(row: Mapping[str, Any]) -> bytes:
        data: bytes = Path(blobs, str(row["digest"]).replace(":", "/")).read_bytes()
        assert len(data) == row["size"]
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == row["digest"]
        return data

    if digest is None:
        (row,) = json.loads((folder / "index.json").read_text())["manifests"]
    else:
        row = {"digest": digest, "size": (blobs / digest.replace(":", "/")).stat().st_size}
    manifest = json.loads(blob(row))
    if "manifests" in manifest:
        return ReadImage(manifest, {}, [], row["digest"])
    config = json.loads(blob(manifest["config"]))
    tars = []
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = blob(layer)
        if layer["mediaType"].endswith("gzip"):
            data = gzip.decompress(data)
        elif layer["mediaType"].endswith("zstd"):
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == diff_id
        tars.append(data)
    return ReadImage(manifest, config, tars, row["digest"])
