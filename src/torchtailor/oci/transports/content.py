"""Blobs in pieces, with their size and digest checked on the way."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchtailor.core.errors import BadInputError, EnvironmentProblem
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.manifests import MANIFEST_LIMIT, too_large

PIECE = 1 << 20
_AGAIN = "Fetch or build the image again."


def short(descriptor: Descriptor) -> str:
    """A digest as people compare it."""
    return f"{descriptor.algorithm}:{descriptor.hex[:12]}"


class ContentCheck:
    """Counts and hashes the pieces of one blob; raises BadInputError where they are not the blob."""

    def __init__(self, descriptor: Descriptor, where: str) -> None:
        self._descriptor, self._where = descriptor, where
        self._hasher = hashlib.new(descriptor.algorithm)
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._descriptor.size:
            raise self._wrong(f"has more than the {self._descriptor.size} bytes that its manifest lists")
        self._hasher.update(piece)

    def finish(self) -> None:
        if self.size < self._descriptor.size:
            raise self._wrong(f"ends after {self.size} of {self._descriptor.size} bytes")
        if self._hasher.hexdigest() != self._descriptor.hex:
            raise self._wrong("is damaged: its bytes do not have that digest")

    def _wrong(self, what: str) -> BadInputError:
        return BadInputError(f"{short(self._descriptor)} of {self._where} {what}.", _AGAIN)


def checked(pieces: Iterable[bytes], descriptor: Descriptor, where: str) -> Iterator[bytes]:
    """The same pieces; the last one is given only if size and digest are right."""
    check = ContentCheck(descriptor, where)
    held = b""
    for piece in pieces:
        check.add(piece)
        if held:
            yield held
        held = piece
    check.finish()
    if held:
        yield held


def read_document(pieces: Iterable[bytes], descriptor: Descriptor, where: str) -> bytes:
    """The checked bytes of a manifest."""
    if descriptor.size > MANIFEST_LIMIT:
        raise too_large(where)
    return b"".join(checked(pieces, descriptor, where))


def join_pieces(pieces: Iterable[bytes], limit: int, where: str) -> bytes:
    """The bytes of something small; what goes on after the limit is refused."""
    parts = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(where)
    return b"".join(parts)


def file_pieces(file: BinaryIO, where: str, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """A part of a file that can be read anywhere; its own position stays, so that several readers share it."""
    descriptor = file.fileno()
    end = os.fstat(descriptor).st_size if size is None else start + size
    while start < end:
        with reading(where):
            piece = os.pread(descriptor, min(PIECE, end - start), start)
        if not piece:
            return
        yield piece
        start += len(piece)


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file; a pipe or device in its place is refused, and never waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInputError(f"{path} is not a plain file.", "Give the archive or folder of an image.")
    return os.fdopen(descriptor, "rb", buffering=0)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn an error of the disk that is read into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise EnvironmentProblem(
            f"{where} cannot be read: {os.strerror(error.errno)}.", "Check the path and its permissions."
        ) from error
