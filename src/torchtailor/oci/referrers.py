"""Documents that refer to an image: signatures, provenance, lists of what is in it, packs (OCI 1.1, `subject`).

A registry that does not know the question lists them under a tag that is made of the image's digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.format import counted
from torchtailor.core.shapes import shaped
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.imagespec import digest_of, make_json_document, read_index
from torchtailor.oci.transports.base import Document

IN_TOTO = "application/vnd.in-toto+json"
PREDICATE = "in-toto.io/predicate-type"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
# What signers call their documents: cosign (old and new), notation.
_SIGNATURES = (
    "application/vnd.dev.cosign.artifact.sig.",
    "application/vnd.dev.cosign.simplesigning.",
    "application/vnd.dev.sigstore.bundle",
    "application/vnd.cncf.notary.signature",
)
_COSIGN_SIGNATURE = ".sig"  # of cosign's older tags: sha256-HEX.sig, .att and .sbom
COSIGN_TAGS = (_COSIGN_SIGNATURE, ".att", ".sbom")


@dataclass(frozen=True)
class Attachment:
    """What is to be attached to an image: blobs of one kind, those with bytes still to be stored."""

    kind: str
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    data: tuple[bytes, ...] = ()

    @classmethod
    def statement(cls, predicate_type: str, data: bytes) -> Attachment:
        """What is said of an image, as in-toto writes it."""
        about = {PREDICATE: predicate_type}
        return cls(IN_TOTO, (Descriptor(IN_TOTO, digest_of(data), len(data), annotations=about),), about, (data,))


@dataclass(frozen=True)
class Referrer:
    """A manifest that refers to an image, and the blobs that it names and that have to be stored first."""

    subject: Descriptor
    document: Document
    blobs: tuple[tuple[Descriptor, bytes], ...]
    row: Mapping[str, Any]  # of an index that lists it


def referrer_of(subject: Descriptor, attached: Attachment) -> Referrer:
    """The manifest that attaches an artifact to an image."""
    config = Descriptor(_EMPTY_TYPE, digest_of(_EMPTY), len(_EMPTY))
    about = {"annotations": dict(attached.annotations)} if attached.annotations else {}
    document = make_json_document(
        {
            "schemaVersion": 2,
            "mediaType": MediaType.OCI_MANIFEST.value,
            "artifactType": attached.kind,
            "config": _row(config),
            "layers": [{**_row(layer), "annotations": layer.annotations} for layer in attached.layers],
            "subject": _row(subject),
            **about,
        },
        MediaType.OCI_MANIFEST.value,
    )
    row = {**_row(document.descriptor), "artifactType": attached.kind, **about}
    return Referrer(subject, document, ((config, _EMPTY), *zip(attached.layers, attached.data, strict=False)), row)


def _row(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def tag_of(subject: Descriptor) -> str:
    """The tag that lists what refers to an image, where the registry itself does not."""
    return f"{subject.algorithm}-{subject.hex}"


def listing(rows: Iterable[Mapping[str, Any]]) -> Document:
    """What that tag leads to."""
    kind = MediaType.OCI_INDEX.value
    return make_json_document({"schemaVersion": 2, "mediaType": kind, "manifests": [*rows]}, kind)


def listed_in(document: Document, where: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of an index of referrers; none of a document that is something else."""
    try:
        return tuple(read_index(document, where).data["manifests"])
    except BadInputError:
        return ()


@dataclass(frozen=True)
class Proofs:
    """How many documents refer to an image."""

    signatures: int = 0
    others: int = 0

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Proofs:
        kinds = [str(row.get("artifactType") or "") for row in rows]
        signatures = sum(kind.startswith(_SIGNATURES) for kind in kinds)
        return cls(signatures, len(kinds) - signatures)

    @classmethod
    def of_tags(cls, endings: Iterable[str]) -> Proofs:
        """By the endings of cosign's tags."""
        found = [*endings]
        return cls(found.count(_COSIGN_SIGNATURE), sum(one != _COSIGN_SIGNATURE for one in found))

    def __add__(self, other: Proofs) -> Proofs:
        return Proofs(self.signatures + other.signatures, self.others + other.others)

    @property
    def said(self) -> str:
        """One sentence on a cut image, or nothing."""
        if not self.signatures:
            return ""
        words = [counted(self.signatures, "signature")]
        words += [counted(self.others, "attestation")] if self.others else []
        verb = "do" if self.signatures + self.others > 1 else "does"
        return (
            f"The stock image has {' and '.join(words)}, which {verb} not hold for the cut one: sign that again where "
            "it is required."
        )


def row_if_of(subject: Descriptor, document: Document) -> Mapping[str, Any] | None:
    """The row of a manifest, if it refers to an image."""
    try:
        found = msgspec.json.decode(document.data, type=shaped(_Referring))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not found.subject or found.subject.digest != subject.digest:
        return None
    kind = found.artifact_type or (found.config.media_type if found.config else "")
    return {**_row(document.descriptor), "artifactType": kind}


class _Named(msgspec.Struct, rename="camel"):
    digest: str = ""
    media_type: str = ""


class _Referring(msgspec.Struct, rename="camel"):
    subject: _Named | None = None
    config: _Named | None = None
    artifact_type: str = ""
