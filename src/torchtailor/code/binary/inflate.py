"""Random access to packed bytes that can only be unpacked forward.

Going back by more than a window starts again from the beginning. The scanner needs two passes over a library:
the section table is at its end, what the table describes before it. Memory stays at a few megabytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from isal import igzip_lib, isal_zlib

from torchtailor.code.binary.search import first_of
from torchtailor.code.binary.source import check_range
from torchtailor.core.errors import BadInputError

ReadAt = Callable[[int, int], bytes]  # (offset, size): those bytes, fewer than asked for at the end

_INPUT_STEP = 1 << 18
_WINDOW = 1 << 20
_KEPT_LIMIT = 1 << 28
_INFLATE_ERROR = cast("type[Exception]", igzip_lib.IsalError)  # isal's stubs say it is an instance
_AGAIN = "Fetch the wheel again and compare its hash with the index's."


class Unpacker:
    """Unpacks a raw deflate stream, or hands on stored bytes, from the beginning to the end."""

    def __init__(self, packed: ReadAt, *, deflated: bool) -> None:
        self._packed = packed
        self._inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE) if deflated else None
        self._fed = self._taken = 0
        self.marks: list[tuple[int, int]] = []  # (unpacked, packed): how far both were whenever all input was used up

    def take(self, size: int) -> bytes:
        """The next bytes: fewer than asked for only at the end."""
        parts: list[bytes] = []
        try:
            while size and (part := self._step(size)) is not None:
                parts.append(part)
                size -= len(part)
                self._taken += len(part)
        except (_INFLATE_ERROR, EOFError) as error:
            raise BadInputError("Packed bytes are damaged.", _AGAIN) from error
        return b"".join(parts)

    def _step(self, room: int) -> bytes | None:
        if self._inflate is None:
            return self._feed(room) or None
        hungry = self._inflate.needs_input
        if hungry or self._inflate.eof:
            self.marks.append((self._taken, self._fed))
        if self._inflate.eof:
            return None
        step = self._feed(_INPUT_STEP) if hungry else b""
        unpacked: bytes = self._inflate.decompress(step, room)  # it may hold bytes even when all input is read
        return None if hungry and not step and not unpacked else unpacked

    def _feed(self, size: int) -> bytes:
        step = self._packed(self._fed, size)
        self._fed += len(step)
        return step


@dataclass(slots=True)
class _Kept:
    """A range that is remembered when it passes by."""

    offset: int
    size: int
    data: bytearray = field(default_factory=bytearray)

    def take(self, start: int, window: bytes) -> None:
        wanted = self.offset + len(self.data)
        if start <= wanted < start + len(window):
            self.data += window[wanted - start : self.offset + self.size - start]

    def holds(self, offset: int, end: int) -> bool:
        return self.offset <= offset and end <= self.offset + len(self.data)


class InflateSource:
    """Packed bytes of known size and checksum, unpacked as they are read."""

    def __init__(self, packed: ReadAt, size: int, crc: int, *, deflated: bool = True) -> None:
        self.size = size
        self.passes = 0
        self._packed = packed
        self._deflated = deflated
        self._expected_crc = crc
        self._kept: list[_Kept] = []
        self._marks: list[tuple[int, int]] = []  # of the first pass, which `verify` brings to the end
        self._restart()

    def read(self, offset: int, size: int) -> bytes:
        check_range(offset, size, self.size)
        if size == 0:
            return b""
        end = offset + size
        for kept in self._kept:
            if kept.holds(offset, end):
                return bytes(kept.data[offset - kept.offset : end - kept.offset])
        if offset < self._start - len(self._before):
            self.verify()
            self._restart()
        while offset >= self._start + len(self._window):
            self._advance()
        if self._start <= offset and end <= self._start + len(self._window):
            return self._window[offset - self._start : end - self._start]
        return self._gather(offset, end)

    def find(self, needle: bytes | tuple[bytes, ...], start: int, end: int) -> int:
        needles = needle if isinstance(needle, tuple) else (needle,)
        longest = max(map(len, needles))
        while start < end:
            reach = min(end, start + longest)
            if start >= self._start - len(self._before):  # else the read starts again, and no window is of use
                reach = max(reach, min(end, self._start + len(self._window)))
            data = self.read(start, reach - start)
            position = first_of(data, needles, 0, len(data), last=reach == end)
            if position >= 0:
                return start + position
            if reach == end:
                break
            start = reach - longest + 1
        return -1

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        room = _KEPT_LIMIT
        for offset, size in ranges:
            check_range(offset, size, self.size)
            room -= size
            if room >= 0:
                self._kept.append(_Kept(offset, size))

    def verify(self) -> None:
        """Unpack what is left, if this is still the first pass, and so check size and checksum."""
        while self.passes == 1 and not self._ended:
            self._advance()

    def packed_at(self, position: int) -> int:
        """How many packed bytes come before an unpacked position that was passed: exact where the decompressor asked
        for more, which is every quarter of a megabyte, and in proportion between."""
        if not self._deflated:
            return position
        marks = self._marks
        after = bisect_left(marks, (position, 0))
        if after == len(marks):
            return marks[-1][1] if marks else 0
        (start, packed), (end, packed_end) = marks[after - 1] if after else (0, 0), marks[after]
        return packed + (packed_end - packed) * (position - start) // max(end - start, 1)

    def chunks(self) -> Iterator[bytes]:
        """All bytes in pieces of a megabyte at most; size and checksum are checked when the last one was taken."""
        for offset in range(0, self.size, _WINDOW):
            yield self.read(offset, min(_WINDOW, self.size - offset))
        self.verify()

    def _gather(self, offset: int, end: int) -> bytes:
        """A range that is not wholly in one window."""
        data = bytearray()
        if offset < self._start:
            first = len(self._before) - (self._start - offset)
            data += self._before[first : first + end - offset]
        while offset + len(data) < end:
            at = offset + len(data) - self._start
            if at >= len(self._window):
                self._advance()
            else:
                data += self._window[at : at + end - offset - len(data)]
        return bytes(data)

    def _restart(self) -> None:
        self._unpacker = Unpacker(self._packed, deflated=self._deflated)
        if self.passes == 0:
            self._marks = self._unpacker.marks
        self._ended = False
        self._crc = 0
        self._start = 0  # of the window in the unpacked bytes
        self._window = b""
        self._before = b""  # the window before this one, for reads that go back a little
        self.passes += 1

    def _advance(self) -> None:
        """Unpack the next window, full unless it is the last: reads that go back a little count on its size."""
        window = self._unpacker.take(_WINDOW)
        self._start += len(self._window)
        self._before, self._window = self._window, window
        unpacked = self._start + len(window)
        if unpacked < self.size and not window:
            raise BadInputError(f"Packed bytes end {self.size - unpacked} bytes too early.", _AGAIN)
        self._ended = unpacked == self.size
        if self.passes == 1:  # enough: `verify` sees to it that the first pass goes to the end
            self._crc = isal_zlib.crc32(window, self._crc)
            if self._ended and self._crc != self._expected_crc:
                raise BadInputError("Packed bytes do not have the checksum they should have.", _AGAIN)
        if unpacked > self.size or (self._ended and self._unpacker.take(1)):
            raise BadInputError("Packed bytes unpack to more than the zip's table says.", _AGAIN)
        for kept in self._kept:
            kept.take(self._start, window)
