"""Images in tar archives: what `docker save` and `skopeo copy` write, from files and pipes."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from torchtailor.core.disk import cache_folder, disk_errors
from torchtailor.core.errors import BadInputError, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.trust import decode_json
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.manifests import DOCUMENT_TYPES, MANIFEST_LIMIT, check_document, make_document
from torchtailor.oci.reference import ImageReference, RepositoryName, parse_repository
from torchtailor.oci.referrers import Proofs
from torchtailor.oci.transports.base import Document
from torchtailor.oci.transports.content import PIECE, checked, join_pieces, open_plain, read_document, reading, short
from torchtailor.oci.transports.layout import INDEX, OciSource, blob_name
from torchtailor.oci.transports.tarball import TarFiles, check_start

DOCKER_MANIFEST_FILE = "manifest.json"
_AGAIN = "Save the image again."
_HEX = re.compile(r"[0-9a-f]{64}")
_LISTED = 10
_MOST_DOCUMENTS = 100  # manifests of an archive that are looked at

Received = Callable[[int], None]


def open_archive(reference: ImageReference, received: Received | None = None) -> TarFiles:
    """The members of an archive; one that comes through a pipe is first written to a file that has no name.

    Layers come before the manifest that says what they are, so a pipe cannot be read in the order that is needed.
    """
    assert reference.path is not None
    return TarFiles(_opened(reference, received), str(reference))


def _opened(reference: ImageReference, received: Received | None) -> BinaryIO:
    where, path = str(reference), reference.path
    assert path is not None
    if reference.is_pipe:
        return _from_stdin(where, received)
    try:
        with reading(where):
            kind = path.stat().st_mode
            if stat.S_ISFIFO(kind):
                with path.open("rb", buffering=0) as pipe:
                    return _spooled(pipe.fileno(), where, received)
            if stat.S_ISDIR(kind):
                raise BadInputError(f"{path} is a folder, not an archive.", f"Write oci:{path} if it is an OCI layout.")
            return open_plain(path)
    except TorchtailorError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NoMatchError(f"{path} does not exist.", "Check the path.") from error
        raise


def _from_stdin(where: str, received: Received | None) -> BinaryIO:
    try:
        descriptor = sys.stdin.fileno()
        kind = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError) as error:
        raise UsageError(f"{where} asks for standard input, which is closed.", "Pipe an archive into it.") from error
    if os.isatty(descriptor):
        raise UsageError(f"{where} would read an archive from the keyboard.", "Pipe docker save into it.")
    if stat.S_ISREG(kind) and os.lseek(descriptor, 0, os.SEEK_CUR) == 0:
        return os.fdopen(os.dup(descriptor), "rb", buffering=0)
    return _spooled(descriptor, where, received)


def _spooled(descriptor: int, where: str, received: Received | None) -> BinaryIO:
    """All that a pipe gives, in a file without a name: it is gone with its last reader, however that ends."""
    with reading(where):
        start = b""
        while len(start) < 512 and (piece := os.read(descriptor, PIECE)):
            start += piece
    check_start(start, where)
    folder = cache_folder()
    with disk_errors(folder, unchanged="Nothing was written."):
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (the caller closes it)
        try:
            _write_all(file.fileno(), start)
            while piece := os.read(descriptor, PIECE):
                _write_all(file.fileno(), piece)
                if received:
                    received(len(piece))
        except BaseException:
            file.close()
            raise
    return file


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class OciArchiveSource(OciSource):
    """An image of an OCI layout that is packed in a tar archive."""

    def __init__(self, reference: ImageReference, received: Received | None = None) -> None:
        super().__init__(reference, _LazyFiles(reference, received))


class _LazyFiles:
    """The files of an archive, which is opened when the first of them is asked for."""

    def __init__(self, reference: ImageReference, received: Received | None) -> None:
        self._reference, self._received = reference, received

    @cached_property
    def members(self) -> TarFiles:
        return open_archive(self._reference, self._received)

    def size(self, name: str) -> int | None:
        return self.members.size(name)

    @contextmanager
    def pieces(self, name: str) -> Iterator[Iterator[bytes]]:
        with self.members.pieces(name) as pieces:
            yield pieces

    def path(self, name: str) -> Path | None:
        return self.members.path(name)

    def close(self) -> None:
        if "members" in self.__dict__:
            self.members.close()


class _Saved(msgspec.Struct, rename="pascal"):
    """One image of docker's manifest.json."""

    config: str
    layers: tuple[str, ...] = ()
    repo_tags: tuple[str, ...] | None = None


class _RootFs(msgspec.Struct):
    diff_ids: tuple[str, ...] = ()


class _Config(msgspec.Struct):
    rootfs: _RootFs


class _Manifest(msgspec.Struct, rename="camel"):
    """A manifest of Docker's second schema."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    schema_version: int = 2
    media_type: str = MediaType.DOCKER_MANIFEST.value


class _Listed(msgspec.Struct):
    """What an index or a manifest names."""

    manifests: tuple[Descriptor, ...] = ()
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()


@dataclass(frozen=True, slots=True)
class _Assembled:
    """The manifest of an image, and which members are the blobs that it names."""

    root: Document
    members: dict[str, str]


class DockerArchiveSource:
    """An image as `docker save` writes it, of any of its ages; where it has no manifest, one is made from what docker
    wrote instead."""

    is_remote = False

    def __init__(self, reference: ImageReference, received: Received | None = None) -> None:
        self._reference = reference
        self._files = _LazyFiles(reference, received)

    @property
    def name(self) -> str:
        return str(self._reference)

    def root(self) -> Document:
        return self._image.root

    def document(self, descriptor: Descriptor) -> Document:
        if descriptor.digest != self._image.root.descriptor.digest:
            raise BadInputError(f"{self.name} lacks the manifest {short(descriptor)}.", _AGAIN)
        return self._image.root

    @contextmanager
    def blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        member = self._image.members.get(descriptor.digest)
        if member is None:
            raise BadInputError(f"{self.name} lacks the blob {short(descriptor)}.", _AGAIN)
        with self._files.pieces(member) as pieces:
            yield checked(pieces, descriptor, self.name)

    def referrers(self, descriptor: Descriptor) -> tuple[Mapping[str, Any], ...]:
        return ()

    def proofs(self, descriptor: Descriptor) -> Proofs:
        return Proofs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @cached_property
    def _image(self) -> _Assembled:
        saved = self._chosen()
        data = self._small(saved.config)
        config = Descriptor(MediaType.DOCKER_CONFIG.value, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        named = saved.config.removesuffix(".json").rsplit("/", 1)[-1]
        if _HEX.fullmatch(named) and named != config.hex:
            raise BadInputError(f"The configuration in {self.name} is damaged: its digest is not its name.", _AGAIN)
        diff_ids = decode_json(data, _Config, f"The configuration in {self.name}", _AGAIN).rootfs.diff_ids
        if len(diff_ids) != len(saved.layers):
            raise BadInputError(
                f"{self.name} has {len(saved.layers)} layers, but its configuration lists {len(diff_ids)}.", _AGAIN
            )
        layers = tuple(self._layer(member, diff_id) for member, diff_id in zip(saved.layers, diff_ids, strict=True))
        document = self._stored([config.digest, *(layer.digest for layer in layers)]) or make_document(
            msgspec.json.encode(_Manifest(config, layers)), MediaType.DOCKER_MANIFEST.value, self.name
        )
        members = {layer.digest: member for layer, member in zip(layers, saved.layers, strict=True)}
        return _Assembled(document, members | {config.digest: saved.config})

    def _stored(self, digests: list[str]) -> Document | None:
        """The manifest of these blobs that lies in the archive, as docker writes it since version 25: its digest is the
        one that the image has elsewhere."""
        if self._files.size(INDEX) is None:
            return None
        with suppress(BadInputError):  # what docker goes by is right, and enough
            waiting = list(decode_json(self._small(INDEX), _Listed, INDEX).manifests)
            for one in itertools.islice(_emptied(waiting), _MOST_DOCUMENTS):
                member = blob_name(one)
                if one.media_type not in DOCUMENT_TYPES or self._files.size(member) != one.size:
                    continue
                document = check_document(read_document([self._small(member)], one, self.name), one, self.name)
                listed = decode_json(document.data, _Listed, member)
                waiting += listed.manifests
                if listed.config and [listed.config.digest, *(layer.digest for layer in listed.layers)] == digests:
                    return document
        return None

    def _layer(self, member: str, diff_id: str) -> Descriptor:
        size = self._files.size(member)
        if size is None:
            raise BadInputError(f"{self.name} lacks the layer {member[:100]!r}.", _AGAIN)
        start = self._files.members.start(member, 4)
        if start.startswith(b"\x1f\x8b"):
            return Descriptor(MediaType.DOCKER_LAYER_GZIP.value, self._digest(member), size)
        if start == b"\x28\xb5\x2f\xfd":
            return Descriptor(MediaType.DOCKER_LAYER_ZSTD.value, self._digest(member), size)
        return Descriptor(MediaType.DOCKER_LAYER.value, diff_id, size)

    def _digest(self, member: str) -> str:
        """The digest of a compressed layer: its name where it is one (checked when it is read), else of its bytes."""
        *_, algorithm, name = ("", "", *member.split("/"))
        if algorithm == "sha256" and _HEX.fullmatch(name):
            return f"sha256:{name}"
        hasher = hashlib.sha256()
        with self._files.pieces(member) as pieces:
            for piece in pieces:
                hasher.update(piece)
        return f"sha256:{hasher.hexdigest()}"

    def _small(self, member: str) -> bytes:
        if self._files.size(member) is None:
            raise BadInputError(f"{self.name} lacks {member[:100]!r}.", _AGAIN)
        with self._files.pieces(member) as pieces:
            return join_pieces(pieces, MANIFEST_LIMIT, self.name)

    def _chosen(self) -> _Saved:
        if self._files.size(DOCKER_MANIFEST_FILE) is None:
            other = self._files.size("oci-layout") is not None
            raise BadInputError(
                f"{self.name} has no {DOCKER_MANIFEST_FILE}: docker save did not write it.",
                "It is an OCI archive: write oci-archive: instead."
                if other
                else "Save the image with docker 1.10 or later.",
            )
        saved = decode_json(
            self._small(DOCKER_MANIFEST_FILE), tuple[_Saved, ...], f"{DOCKER_MANIFEST_FILE} of {self.name}", _AGAIN
        )
        if self._reference.position is not None:
            if self._reference.position >= len(saved):
                raise NoMatchError(f"{self.name} does not exist: there are {len(saved)} images.", "Count from @0.")
            return saved[self._reference.position]
        wanted = self._reference.image
        found = [one for one in saved if wanted is None or _has_tag(one, wanted)]
        if len(found) == 1:
            return found[0]
        names = sorted({tag for one in saved for tag in one.repo_tags or ()})[:_LISTED]
        hint = f"It holds: {', '.join(names)}." if names else "Add its position: @0, @1, ..."
        if found:
            raise NoMatchError(f"{self.name} could be {len(found)} images.", hint)
        raise NoMatchError(f"There is no image {self.name}.", hint if saved else "The archive is empty.")


def _emptied(waiting: list[Descriptor]) -> Iterator[Descriptor]:
    while waiting:
        yield waiting.pop(0)


def _has_tag(saved: _Saved, wanted: RepositoryName) -> bool:
    for tag in saved.repo_tags or ():
        try:
            if parse_repository(tag) == wanted:
                return True
        except UsageError:
            continue
    return False
