"""Manifests and indexes as bytes: which of both a document is, and which limits it has."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.trust import decode_json
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.transports.base import Document

MANIFEST_LIMIT = 4 << 20  # bytes; what registries take, and 100 times what real ones have

_AGAIN = "Fetch or build the image again."
_INDEXES = (MediaType.OCI_INDEX.value, MediaType.DOCKER_LIST.value)
_MANIFESTS = (MediaType.OCI_MANIFEST.value, MediaType.DOCKER_MANIFEST.value)
_OLD = "application/vnd.docker.distribution.manifest.v1+"
DOCUMENT_TYPES = (*_MANIFESTS, *_INDEXES)
_OCI_NAMES = {
    MediaType.DOCKER_LIST.value: MediaType.OCI_INDEX.value,
    MediaType.DOCKER_MANIFEST.value: MediaType.OCI_MANIFEST.value,
    MediaType.DOCKER_CONFIG.value: MediaType.OCI_CONFIG.value,
    MediaType.DOCKER_LAYER.value: MediaType.OCI_LAYER.value,
    MediaType.DOCKER_LAYER_GZIP.value: MediaType.OCI_LAYER_GZIP.value,
    MediaType.DOCKER_LAYER_ZSTD.value: MediaType.OCI_LAYER_ZSTD.value,
}


class _Outline(msgspec.Struct, rename="camel"):
    """What tells the kinds of documents apart."""

    schema_version: Any = None
    media_type: str | None = None
    manifests: Any = None
    layers: Any = None
    config: Any = None
    fs_layers: Any = None


def make_document(data: bytes, claimed: str, where: str) -> Document:
    """A document with its digest and media type; `claimed` is the type that came with it, possibly wrong."""
    if len(data) > MANIFEST_LIMIT:
        raise too_large(where)
    kind = _media_type(data, claimed.partition(";")[0].strip().lower(), where)
    return Document(data, Descriptor(kind, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)))


def check_document(data: bytes, descriptor: Descriptor, where: str) -> Document:
    """A document that an index names; its size and digest were checked."""
    kind = _media_type(data, descriptor.media_type, where)
    return Document(data, Descriptor(kind, descriptor.digest, descriptor.size))


def too_large(where: str) -> BadInputError:
    return BadInputError(
        f"The manifest of {where} is larger than {MANIFEST_LIMIT >> 20} MiB.", "Fetch or build the image again."
    )


def oci_media_type(media_type: str) -> str:
    """What OCI calls something that Docker has a name of its own for; everything else keeps its name."""
    return _OCI_NAMES.get(media_type, media_type)


def to_oci(manifest: Document) -> Document:
    """The same manifest with OCI's names for what Docker calls otherwise: its digest changes, its blobs do not.

    An index must name manifests that were converted already.
    """
    content: Any = msgspec.json.decode(manifest.data)
    parts = [content.get("config"), *(content.get("layers") or ()), *(content.get("manifests") or ())]
    named = [part for part in (content, *parts) if isinstance(part, dict) and part.get("mediaType") in _OCI_NAMES]
    for part in named:
        part["mediaType"] = oci_media_type(part["mediaType"])
    kind = oci_media_type(manifest.descriptor.media_type)
    if not named and kind == manifest.descriptor.media_type:
        return manifest
    return make_document(msgspec.json.encode(content), kind, "the manifest")


def require_oci(document: Document, where: str) -> None:
    """Refuse a Docker manifest where every other tool expects an OCI one."""
    if document.descriptor.media_type in _OCI_NAMES:
        raise BadInputError(f"{where} takes OCI manifests only.", "This is a bug in torchtailor; please report it.")


def is_index(document: Document) -> bool:
    """Whether a document is an index of several manifests."""
    return document.descriptor.media_type in _INDEXES


def _media_type(data: bytes, claimed: str, where: str) -> str:
    """What the document says of itself goes before what came with it: registries and proxies lose types."""
    outline = decode_json(data, _Outline, f"The manifest of {where}", _AGAIN)
    old = (outline.media_type or claimed).startswith(_OLD)
    if old or (outline.schema_version == 1 and outline.fs_layers is not None):
        raise BadInputError(
            f"{where} has a manifest of Docker's first format, which was given up in 2017.",
            "Push the image again with a current docker or podman.",
        )
    if outline.manifests is not None and (outline.layers is not None or outline.config is not None):
        raise BadInputError(f"The manifest of {where} is an index and an image at once.", _AGAIN)
    own = (outline.media_type or "").lower()
    if own and claimed in DOCUMENT_TYPES and own != claimed:
        raise BadInputError(f"The manifest of {where} says {own[:100]} where {claimed} was expected.", _AGAIN)
    kind = own or (claimed if claimed in DOCUMENT_TYPES else "")
    if not kind:
        kind = _by_outline(outline)
    if not kind:
        raise BadInputError(f"{where} has no manifest that says what it is.", _AGAIN)
    if (kind in _INDEXES and outline.manifests is None) or (kind in _MANIFESTS and outline.config is None):
        raise BadInputError(f"The manifest of {where} is not the {kind} that it says it is.", _AGAIN)
    return kind


def _by_outline(outline: _Outline) -> str:
    """The OCI specification lets documents leave their type out."""
    if outline.manifests is not None:
        return MediaType.OCI_INDEX.value
    if outline.config is not None and outline.layers is not None:
        return MediaType.OCI_MANIFEST.value
    return ""
