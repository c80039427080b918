"""Images as tar archives, written in one pass to a file or a pipe; the same image gives the same bytes."""

from __future__ import annotations

import os
import stat
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from torchtailor.core.disk import check_replaceable, disk_errors, new_file, staging_folder
from torchtailor.core.errors import BadInputError, EnvironmentProblem, UsageError
from torchtailor.core.trust import decode_json
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.manifests import is_index, require_oci
from torchtailor.oci.reference import ImageReference
from torchtailor.oci.referrers import Referrer
from torchtailor.oci.transports.archive import DOCKER_MANIFEST_FILE
from torchtailor.oci.transports.base import Document, ImageSource
from torchtailor.oci.transports.content import checked, file_pieces, open_plain, short
from torchtailor.oci.transports.layout import (
    INDEX,
    LAYOUT,
    LAYOUT_CONTENT,
    REF_NAME,
    blob_name,
    index_entry,
    new_index,
)

_BLOCK = 512
_CONTAINERD_NAME = "io.containerd.image.name"


class _Abandoned(Exception):  # noqa: N818
    """The block ended without a commit."""


class _TarWriter:
    """Members one after the other, without times or owners; a file that fails halfway is taken back where it can."""

    def __init__(self, file: BinaryIO, *, seekable: bool) -> None:
        self._file, self._seekable = file, seekable
        self._broken = False
        self.names: set[str] = set()

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        if self._broken:
            raise EnvironmentProblem("The archive in the pipe broke off in the middle of a file.", "Run it again.")
        for folder in [str(parent) for parent in reversed(Path(name).parents)][1:]:
            if folder not in self.names:
                self._file.write(_header(folder, 0, tarfile.DIRTYPE))
                self.names.add(folder)
        start = self._file.tell() if self._seekable else 0
        try:
            self._file.write(_header(name, size, tarfile.REGTYPE))
            for piece in pieces:
                self._file.write(piece)
            self._file.write(bytes(-size % _BLOCK))
        except BaseException:
            if self._seekable:
                self._file.seek(start)
                self._file.truncate()
            else:
                self._broken = True
            raise
        self.names.add(name)

    def finish(self) -> None:
        self._file.write(bytes(2 * _BLOCK))
        self._file.flush()


def _header(name: str, size: int, kind: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    entry.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)


class _ArchiveDestination:
    """What OCI and docker archives have in common: an OCI layout in a tar file."""

    is_local = True
    takes_index = True
    takes_referrers = False

    def __init__(self, reference: ImageReference) -> None:
        assert reference.path is not None
        if reference.position is not None:
            raise UsageError(f"{reference} is a position, which only an image that exists has.", "Give it a name.")
        self._reference, self._path = reference, reference.path
        self._stack = ExitStack()
        self._made: list[Path] = []
        self._lock = threading.Lock()
        self._staging: Path | None = None
        self._writer: _TarWriter | None = None

    @property
    def name(self) -> str:
        return str(self._reference)

    @property
    def staging(self) -> Path | None:
        return self._staging

    def __enter__(self) -> Self:
        if self._reference.is_pipe:
            file = self._stack.enter_context(_standard_output(self.name))
            self._writer = _TarWriter(file, seekable=False)
            return self
        folder = self._path.absolute().parent
        with disk_errors(folder):
            if _is_folder(self._path):
                raise UsageError(f"{self._path} is a folder.", f"Write oci:{self._path}, or the name of a file.")
            check_replaceable(self._path)
            self._made = [one for one in (folder, *folder.parents) if not one.exists()]
            self._staging = self._stack.enter_context(staging_folder(folder))
            file = self._stack.enter_context(new_file(self._path, staging=self._staging))
            self._writer = _TarWriter(file, seekable=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer = None
            with suppress(OSError):  # a pipe whose reader is gone
                self._stack.__exit__(_Abandoned, _Abandoned(), None)
        with suppress(OSError):  # empty ones alone
            for folder in self._made:
                folder.rmdir()

    def has(self, descriptor: Descriptor) -> bool:
        return blob_name(descriptor) in self._tar.names

    def take(self, descriptor: Descriptor, source: ImageSource) -> bool:
        return self.has(descriptor)

    def put(self, descriptor: Descriptor, chunks: Iterator[bytes]) -> None:
        self._add(blob_name(descriptor), descriptor.size, checked(chunks, descriptor, self.name))

    def put_file(self, descriptor: Descriptor, path: Path) -> None:
        if not self.has(descriptor):
            with open_plain(path) as file:
                self.put(descriptor, file_pieces(file, str(path)))

    def put_document(self, document: Document) -> None:
        self.put(document.descriptor, iter((document.data,)))

    def attach(self, referrer: Referrer) -> None:
        raise NotImplementedError

    def commit(self, root: Document) -> None:
        self.put_document(root)
        for name, data in self._last_files(root).items():
            self._add(name, len(data), iter((data,)))
        with self._writing():
            self._tar.finish()
            self._writer = None
            self._stack.close()

    def _last_files(self, root: Document) -> dict[str, bytes]:
        raise NotImplementedError

    @property
    def _tar(self) -> _TarWriter:
        assert self._writer is not None
        return self._writer

    def _add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        with self._lock, self._writing():
            if name not in self._tar.names:
                self._tar.add(name, size, pieces)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with disk_errors(self._path.absolute().parent):
                yield
        except EnvironmentProblem as error:
            if isinstance(error.__cause__, BrokenPipeError):
                raise EnvironmentProblem(
                    "What reads the archive from the pipe has closed it.", "See what it said; nothing else was written."
                ) from error
            raise


class OciArchiveDestination(_ArchiveDestination):
    """An OCI layout in a tar file."""

    takes_referrers = True
    wants_oci = True

    def __init__(self, reference: ImageReference) -> None:
        super().__init__(reference)
        self._rows: list[bytes] = []

    def put_document(self, document: Document) -> None:
        require_oci(document, self.name)
        super().put_document(document)

    def attach(self, referrer: Referrer) -> None:
        for blob, data in referrer.blobs:
            self.put(blob, iter((data,)))
        self.put_document(referrer.document)
        self._rows.append(msgspec.json.encode(referrer.row))

    def _last_files(self, root: Document) -> dict[str, bytes]:
        name = self._reference.ref
        entry = index_entry(root, {REF_NAME: name} if name else {})
        return {LAYOUT: LAYOUT_CONTENT, INDEX: new_index([entry, *self._rows])}


class _Parts(msgspec.Struct):
    """What a manifest names."""

    config: Descriptor
    layers: tuple[Descriptor, ...] = ()


class DockerArchiveDestination(_ArchiveDestination):
    """What `docker load` takes: an OCI layout, as docker itself saves since version 25, and docker's manifest.json for
    all others. Layers stay compressed as they are; docker, podman and skopeo find out by themselves."""

    takes_index = False
    wants_oci = False

    def put_document(self, document: Document) -> None:
        if is_index(document):
            raise UsageError(
                f"{self.name} can hold the image of one platform only.", "Choose a platform, or write an oci-archive:."
            )
        super().put_document(document)

    def _last_files(self, root: Document) -> dict[str, bytes]:
        parts = decode_json(root.data, _Parts, f"The manifest for {self.name}")
        for part in (parts.config, *parts.layers):
            if not self.has(part):
                raise BadInputError(f"{short(part)} was not written to {self.name}.", "This is a bug in torchtailor.")
        image = self._reference.image
        saved = {
            "Config": blob_name(parts.config),
            "RepoTags": [image.familiar] if image else None,
            "Layers": [blob_name(layer) for layer in parts.layers],
        }
        names = {_CONTAINERD_NAME: str(image), REF_NAME: image.tag or ""} if image else {}
        return {
            LAYOUT: LAYOUT_CONTENT,
            INDEX: new_index([index_entry(root, names)]),
            DOCKER_MANIFEST_FILE: msgspec.json.encode([saved]),
        }


def _is_folder(path: Path) -> bool:
    """Whether it is one; a name that no disk takes is an error, of which Path.is_dir says nothing since Python 3.14."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _standard_output(where: str) -> BinaryIO:
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError) as error:
        raise UsageError(f"{where} asks for standard output, which is closed.", "Write to a file.") from error
    if os.isatty(descriptor):
        raise UsageError(f"{where} would write an archive to the terminal.", "Write to a file, or pipe it elsewhere.")
    sys.stdout.flush()
    return os.fdopen(os.dup(descriptor), "wb", buffering=1 << 20)
