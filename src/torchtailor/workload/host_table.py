"""What a library without its untouched pages says of itself: what was cut out of it, and by which keys it is found.

It is the content of an ELF note, which the hook (`native/pages.c`) and `readelf -n` read too. A segment's key is the
hash of the bytes that its pack maps over it, so that no other build's can be taken for it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SegmentType
from torchtailor.core.errors import BadInputError

NOTE_OWNER = b"torchtailor\0"
NOTE_TYPE = 1
NOTE_HEADER = struct.Struct("<III")
_HEAD = struct.Struct("<16sQQIIIIII")
_SEGMENT = struct.Struct("<QQ16sQ")
_RUN = struct.Struct("<QQ")
_PIECE = struct.Struct("<QQQ")


class SegmentFlag(IntFlag):
    """Of a segment with pages in a pack: the bits of its program header, and when the pages are needed."""

    EXECUTE = 1
    WRITE = 2
    READ = 4
    AT_LOAD = 0x100  # data: the kernel reads it too, which no handler of faults sees


@dataclass(frozen=True, slots=True)
class PagedSegment:
    """Addresses that a pack's pages are mapped over."""

    address: int
    size: int
    key: bytes
    flags: SegmentFlag

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class HostTable:
    """The segments of a library that have pages in its pack, and which of their addresses have no bytes in the file."""

    identity: str  # of the library, as traces have it
    address: int  # of this table
    offset: int  # of this table in the file
    page: int
    segments: tuple[PagedSegment, ...]
    cold: tuple[tuple[int, int], ...]  # (start, end)
    hot: tuple[tuple[int, int, int], ...]  # the pieces that the hook maps from the file: (start, end, offset)
    joined: tuple[tuple[int, int, bool], ...]  # that become one mapping, without a file: (start, end, has content)
    pack: str  # the name of its pack
    place: str  # the folder of the pack, from the library's

    def to_bytes(self) -> bytes:
        counts = (len(self.segments), len(self.cold), len(self.hot), self.size, len(self.joined))
        head = _HEAD.pack(bytes.fromhex(self.identity), self.address, self.offset, self.page, *counts)
        rows = [_SEGMENT.pack(segment.address, segment.size, segment.key, segment.flags) for segment in self.segments]
        rows += [_RUN.pack(*run) for run in self.cold]
        rows += [_PIECE.pack(*piece) for piece in self.hot]
        rows += [_RUN.pack(start | content, end) for start, end, content in self.joined]
        return b"".join([head, *rows, self.pack.encode(), b"\0", self.place.encode(), b"\0"])

    @property
    def size(self) -> int:
        """Bytes of the table."""
        rows = len(self.segments) * _SEGMENT.size + len(self.hot) * _PIECE.size
        rows += (len(self.cold) + len(self.joined)) * _RUN.size
        return _HEAD.size + rows + len(self.pack.encode()) + len(self.place.encode()) + 2

    @property
    def cold_size(self) -> int:
        """Bytes that are in the pack alone."""
        return sum(end - start for start, end in self.cold)

    @property
    def hot_size(self) -> int:
        """Bytes of the file that the hook maps, which no program header names."""
        return sum(end - start for start, end, _ in self.hot)

    def note(self) -> bytes:
        """The ELF note that holds it; the table begins `NOTE_HEADER.size + len(NOTE_OWNER)` bytes in."""
        data = self.to_bytes()
        return NOTE_HEADER.pack(len(NOTE_OWNER), len(data), NOTE_TYPE) + NOTE_OWNER + data

    @classmethod
    def from_bytes(cls, data: bytes) -> HostTable:
        try:
            identity, address, offset, page, count, cold, hot, size, joined = _HEAD.unpack_from(data)
            ends = [_HEAD.size]
            kinds = ((_SEGMENT, count), (_RUN, cold), (_PIECE, hot), (_RUN, joined))
            for row, number in kinds:
                ends.append(ends[-1] + number * row.size)
            segments, runs, pieces, together = (
                tuple(row.iter_unpack(data[ends[index] : ends[index + 1]])) for index, (row, _) in enumerate(kinds)
            )
            pack, place, rest = data[ends[-1] :].split(b"\0")
            if not rest and size == len(data):
                return cls(
                    identity.hex(),
                    address,
                    offset,
                    page,
                    tuple(PagedSegment(start, length, key, SegmentFlag(bits)) for start, length, key, bits in segments),
                    runs,
                    pieces,
                    tuple((start & ~1, end, bool(start & 1)) for start, end in together),
                    pack.decode(),
                    place.decode(),
                )
        except (struct.error, ValueError):
            pass
        raise BadInputError("What it says of its pages in a pack is damaged.", "Restore it, or install it again.")


def host_table(elf: ElfFile) -> HostTable | None:
    """The table of a library that was cut to its touched pages; None for others."""
    for segment in elf.segments:
        if segment.type != SegmentType.NOTE:
            continue
        at, end = segment.offset, segment.offset + segment.file_size
        while at + NOTE_HEADER.size <= end:
            owner_size, size, kind = NOTE_HEADER.unpack(elf.read(at, NOTE_HEADER.size))
            name_at = at + NOTE_HEADER.size
            start = name_at + -(-owner_size // 4) * 4
            if start + size > end:
                break
            if kind == NOTE_TYPE and elf.read(name_at, owner_size) == NOTE_OWNER:
                return HostTable.from_bytes(bytes(elf.read(start, size)))
            at = start + -(-size // 4) * 4
    return None
