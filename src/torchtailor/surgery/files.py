"""Reading and copying big files without mapping them: a mapped gigabyte counts as memory used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EINVAL, ENOSYS, EOPNOTSUPP, EXDEV
from pathlib import Path

from torchtailor.code.binary.search import first_of
from torchtailor.code.binary.source import ByteSource, check_range
from torchtailor.core.disk import write_at
from torchtailor.core.errors import BadInputError, EnvironmentProblem

CHUNK = 256 << 10  # stays in a core's cache between the reading and the use
_SMALL = 1 << 10
_BLOCK = 4 << 10
_ZEROS = bytes(_BLOCK)
_WINDOW = 2 << 10
_FALL_BACK = {EINVAL, ENOSYS, EOPNOTSUPP, EXDEV}


class FileSource:
    """A file read piece by piece (a `ByteSource` for the readers of ELF files and containers)."""

    def __init__(self, fd: int, searched: Sequence[tuple[int, int]] | None = None) -> None:
        """`searched` are the only (start, end) in which `find` looks; None means everywhere."""
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.searched = searched
        self._window = (0, b"")  # the last few kilobytes read: headers are small and near each other

    def read(self, offset: int, size: int) -> bytes:
        if size <= _SMALL:
            start, window = self._window
            at = offset - start
            if 0 <= at <= (end := at + size) <= len(window):
                return window[at:end]
            check_range(offset, size, self.size)
            window = os.pread(self.fd, _WINDOW, offset)
            self._window = (offset, window)
            if len(window) >= size:
                return window[:size]
        check_range(offset, size, self.size)
        data = os.pread(self.fd, size, offset)
        while len(data) < size:  # a read is cut at 2 GiB, and at the end of a file that shrank under us
            more = os.pread(self.fd, size - len(data), offset + len(data))
            if not more:
                raise BadInputError("The file became shorter while it was read.", "Try again.")
            data += more
        return data

    def find(self, needle: bytes | tuple[bytes, ...], start: int, end: int) -> int:
        needles = needle if isinstance(needle, tuple) else (needle,)
        longest = max(map(len, needles))
        if self.searched is not None and not any(low < end and start < high for low, high in self.searched):
            return -1
        end = min(end, self.size)
        position, step = start, _SMALL  # the next container is nearly always near
        while position < end:
            data = self.read(position, min(step, end - position))
            last = position + len(data) >= end
            if position == start and data.startswith(needles):  # so it is with containers one after another
                return start
            found = first_of(data, needles, 0, len(data), last=last)
            if found >= 0:
                return position + found
            if last:
                break
            position += max(1, len(data) - longest + 1)
            step = CHUNK
        return -1

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        pass  # everything is at hand

    def verify(self) -> None:
        pass  # nobody knows a checksum

    def chunks(self, offset: int, size: int) -> Iterator[bytes]:
        """The bytes of a range, a quarter of a megabyte at a time."""
        while size > 0:
            data = self.read(offset, min(CHUNK, size))
            yield data
            offset += len(data)
            size -= len(data)


def same_bytes(one: ByteSource, at: int, other: ByteSource, there: int, size: int) -> bool:
    """Whether two ranges hold the same bytes, compared a quarter of a megabyte at a time."""
    done = 0
    while done < size:
        step = min(CHUNK, size - done)
        if one.read(at + done, step) != other.read(there + done, step):
            return False
        done += step
    return True


@contextmanager
def open_file(path: Path) -> Iterator[FileSource]:
    """Open a file for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}.") from error
    try:
        source = FileSource(fd)
        if source.size == 0:
            raise BadInputError(f"{path} is empty.", "Fetch it again.")
        yield source
    finally:
        os.close(fd)


def copy_range(source: FileSource, offset: int, fd: int, at: int, size: int) -> None:
    """Copy bytes from one file to another inside the kernel, where it can."""
    check_range(offset, size, source.size)
    while size > 0:
        try:
            done = os.copy_file_range(source.fd, fd, size, offset, at)
        except OSError as error:
            if error.errno not in _FALL_BACK:
                raise
            for chunk in source.chunks(offset, size):
                at += write_at(fd, at, chunk)
            return
        if done == 0:
            raise BadInputError("The file became shorter while it was read.", "Try again.")
        offset, at, size = offset + done, at + done, size - done


def copy_sparse(source: FileSource, fd: int) -> None:
    """Make a file a copy of another, in which long runs of zeros take no space on the disk."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, source.size)
    at = 0
    for chunk in source.chunks(0, source.size):
        for first, end in _without_zeros(chunk):
            write_at(fd, at + first, chunk[first:end])
        at += len(chunk)


def _without_zeros(chunk: bytes) -> Iterator[tuple[int, int]]:
    """The ranges of a chunk that hold something, in whole blocks of the disk."""
    if not chunk.strip(b"\0"):
        return
    start = 0
    for at in range(0, len(chunk), _BLOCK):
        if chunk.startswith(_ZEROS, at):
            if start < at:
                yield start, at
            start = at + _BLOCK
    if start < len(chunk):
        yield start, len(chunk)


def write_patches(fd: int, patches: Iterable[tuple[int, bytes]]) -> None:
    """Write small pieces into bytes that are there; those near each other in one go, later ones over earlier ones."""
    windows: dict[int, list[tuple[int, bytes]]] = {}
    for at, data in patches:
        windows.setdefault(at // CHUNK, []).append((at, data))
    for pieces in windows.values():
        if len(pieces) == 1:
            write_at(fd, *pieces[0])
            continue
        start = min(at for at, _ in pieces)
        end = max(at + len(data) for at, data in pieces)
        window = bytearray(os.pread(fd, end - start, start))
        window.extend(bytes(end - start - len(window)))
        for at, data in pieces:
            window[at - start : at - start + len(data)] = data
        write_at(fd, start, bytes(window))
