"""Bytes to read from: a mapped file or a buffer, where every read is checked against the end."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from torchtailor.code.binary.search import Buffer, find
from torchtailor.core.disk import open_plain
from torchtailor.core.errors import BadInputError

Bytes = bytes | bytearray | memoryview


class ByteSource(Protocol):
    """Random access to the bytes of one file."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> Bytes:
        """Exactly these bytes, or BadInputError where they are not all inside the file."""
        ...

    def find(self, needle: bytes | tuple[bytes, ...], start: int, end: int) -> int:
        """Where `needle`, or the first of several, first lies wholly inside [start, end), or -1."""
        ...

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which (offset, size) will be read out of order, for sources that can only go forward."""
        ...

    def verify(self) -> None:
        """Raise BadInputError where the source knows a checksum of the bytes and they have another."""
        ...


def check_range(offset: int, size: int, limit: int) -> None:
    """Refuse a range that is not wholly inside the file."""
    if offset < 0 or size < 0 or offset + size > limit:
        raise BadInputError(
            f"The file is cut short or damaged: {size} bytes at {offset:#x} are outside its {limit} bytes.",
            "Fetch it again and compare its hash with the publisher's.",
        )


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Says of errors that are found in some bytes whose they are."""
    try:
        yield
    except BadInputError as error:
        raise type(error)(f"{what}: {error.message}", error.hint) from error


class BufferSource:
    """A buffer in memory or a memory map; reads are views and copy nothing."""

    __slots__ = ("_view", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._view = memoryview(buffer).cast("B")
        self.size = len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        check_range(offset, size, self.size)
        return self._view[offset : offset + size]

    def find(self, needle: bytes | tuple[bytes, ...], start: int, end: int) -> int:
        return find(self._view, needle, start, end)

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        pass  # everything is at hand

    def verify(self) -> None:
        pass  # nobody knows a checksum


@contextmanager
def open_source(path: Path) -> Iterator[BufferSource]:
    """Map a file read-only for as long as the block runs."""
    with open_plain(path) as file:
        if file.seek(0, 2) == 0:
            raise BadInputError(f"{path} is empty.", "Fetch it again.")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield BufferSource(mapped)
    finally:
        # views may outlive the block (an error on its way up holds frames that hold them); the last unmaps
        with suppress(BufferError):
            mapped.close()
