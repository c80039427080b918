"""What every place for images can do: give manifests and blobs, or take them and show them all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from torchtailor.oci.descriptor import Descriptor

if TYPE_CHECKING:
    from torchtailor.oci.referrers import Proofs, Referrer


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or index, byte for byte: its digest is of these bytes."""

    data: bytes
    descriptor: Descriptor


class ImageSource(Protocol):
    """An image that can be read; nothing is fetched before it is asked for."""

    @property
    def name(self) -> str:
        """As the user wrote it, without credentials."""

    @property
    def is_remote(self) -> bool:
        """Whether a blob that is read twice is fetched twice."""

    def root(self) -> Document:
        """What the name points to: a manifest, or an index of several platforms."""

    def document(self, descriptor: Descriptor) -> Document:
        """A manifest that an index names; size and digest were checked."""

    def blob(self, descriptor: Descriptor) -> AbstractContextManager[Iterator[bytes]]:
        """The bytes of a blob in pieces of about 1 MiB. Resumes where a connection broke; the last piece is given only
        if size and digest are right, else it raises a TorchtailorError."""

    def referrers(self, descriptor: Descriptor) -> tuple[Mapping[str, Any], ...]:
        """The rows of an index of what refers to a manifest."""

    def proofs(self, descriptor: Descriptor) -> Proofs:
        """How many signatures and attestations refer to a manifest."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ImageDestination(Protocol):
    """A place for one image. Nothing is visible before `commit`; leaving the block without it removes what can be."""

    @property
    def name(self) -> str: ...

    @property
    def is_local(self) -> bool:
        """If it stays on this machine or in its network; NVIDIA's cut libraries go elsewhere only when asked for."""

    @property
    def takes_index(self) -> bool:
        """Whether it can hold several platforms under one name; a docker archive cannot."""

    @property
    def wants_oci(self) -> bool:
        """Whether manifests must have OCI's media types (`manifests.to_oci`): skopeo and umoci do not find Docker's in
        OCI layouts."""

    @property
    def takes_referrers(self) -> bool:
        """Whether documents can be attached to an image there."""

    @property
    def staging(self) -> Path | None:
        """A folder on its disk for files that `put_file` will be given, gone after the block; None where there is no
        such disk."""

    def has(self, descriptor: Descriptor) -> bool:
        """Whether the blob is there already (for a registry also: it could be mounted from another repository)."""

    def take(self, descriptor: Descriptor, source: ImageSource) -> bool:
        """Take an unchanged blob without reading it here where that is possible: it is there, or mounted in one
        registry, or linked on one disk; False where its bytes must be sent with `put`."""

    def put(self, descriptor: Descriptor, chunks: Iterator[bytes]) -> None:
        """Store a blob; its size and digest are checked."""

    def put_file(self, descriptor: Descriptor, path: Path) -> None:
        """Store a blob that lies in a file, which may be moved away, unless it is there and that costs less."""

    def put_document(self, document: Document) -> None:
        """Store a manifest by digest."""

    def attach(self, referrer: Referrer) -> None:
        """Store a document that refers to an image, which may come later."""

    def commit(self, root: Document) -> None:
        """Give the image its name: the last thing that is done."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
