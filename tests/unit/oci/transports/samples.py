"""Small images, and copying them whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.manifests import is_index, make_document, to_oci
from torchtailor.oci.transports.base import Document, ImageDestination, ImageSource
from torchtailor.oci.transports.copying import copy_blob


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, media_type: MediaType) -> Descriptor:
    return Descriptor(media_type.value, digest_of(data), len(data))


def layer_tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@dataclass
class SampleImage:
    """An image in memory: its manifest, and all blobs by digest."""

    root: Document
    blobs: dict[str, bytes] = field(default_factory=dict)
    layers: tuple[Descriptor, ...] = ()
    config: Descriptor | None = None

    @property
    def name(self) -> str:
        return "sample"

    @property
    def digest(self) -> str:
        return self.root.descriptor.digest


def sample_image(
    tars: Sequence[bytes] = (layer_tar({"a": b"one"}), layer_tar({"b": b"two" * 1000})),
    *,
    docker: bool = False,
    compressed: bool = True,
) -> SampleImage:
    config_data = json.dumps(
        {
            "architecture": "arm64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
        }
    ).encode()
    packed = [gzip.compress(tar, 1, mtime=0) if compressed else tar for tar in tars]
    if docker:
        kind = MediaType.DOCKER_LAYER_GZIP if compressed else MediaType.DOCKER_LAYER
        config = described(config_data, MediaType.DOCKER_CONFIG)
    else:
        kind = MediaType.OCI_LAYER_GZIP if compressed else MediaType.OCI_LAYER
        config = described(config_data, MediaType.OCI_CONFIG)
    layers = tuple(described(data, kind) for data in packed)
    manifest = (MediaType.DOCKER_MANIFEST if docker else MediaType.OCI_MANIFEST).value
    content = {"schemaVersion": 2, "mediaType": manifest, "config": config, "layers": layers}
    blobs = {digest_of(data): data for data in (*packed, config_data)}
    return SampleImage(make_document(msgspec.json.encode(content), manifest, "sample"), blobs, layers, config)


def write_layout(folder: Path, images: Mapping[str, SampleImage], **extra: Any) -> Path:
    """A layout as another tool would have written it."""
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    entries = []
    for name, image in images.items():
        for digest, data in (image.blobs | {image.digest: image.root.data}).items():
            (folder / "blobs" / digest.replace(":", "/")).write_bytes(data)
        found = image.root.descriptor
        entry: dict[str, Any] = {"mediaType": found.media_type, "digest": found.digest, "size": found.size}
        if name:
            entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        entries.append(entry)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries} | extra))
    return folder


class _Parts(msgspec.Struct):
    config: Descriptor
    layers: tuple[Descriptor, ...]


class _Children(msgspec.Struct):
    manifests: tuple[Descriptor, ...]


def parts_of(manifest: Document) -> tuple[Descriptor, ...]:
    parts = msgspec.json.decode(manifest.data, type=_Parts)
    return (*parts.layers, parts.config)


def copy_image(source: ImageSource, destination: ImageDestination) -> Document:
    """All blobs, manifests and the name; returns what the name leads to now."""
    with source, destination:
        root = source.root()
        for child in children_of(source, root):
            manifest = to_oci(child) if destination.wants_oci else child
            for part in parts_of(manifest):
                copy_blob(part, source, destination)
            if child.descriptor == root.descriptor:
                root = manifest
            else:
                destination.put_document(manifest)
        destination.commit(root)
        return root


def children_of(source: ImageSource, root: Document) -> tuple[Document, ...]:
    if not is_index(root):
        return (root,)
    return tuple(source.document(one) for one in msgspec.json.decode(root.data, type=_Children).manifests)


def read_blob(source: ImageSource, descriptor: Descriptor) -> bytes:
    with source.blob(descriptor) as pieces:
        return b"".join(pieces)


def read_image(source: ImageSource) -> tuple[Document, dict[str, bytes]]:
    """A whole image, with all of it checked."""
    with source:
        root = source.root()
        blobs = {
            part.digest: read_blob(source, part) for child in children_of(source, root) for part in parts_of(child)
        }
    return root, blobs


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
