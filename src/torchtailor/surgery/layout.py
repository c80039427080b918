"""The arithmetic of making a file smaller without moving anything but containers.

Addresses stay. Containers move towards the start of their own section, what they leave is free, and a free range that
spans whole pages becomes a *hole*: the loaded segment around it is split in two, and the pages between are in the
file no more. File offsets shift so that each stays congruent to its address, as the loader demands.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchtailor.code.binary.elf_headers import ElfMachine, Segment
from torchtailor.core.errors import ImpossibleError
from torchtailor.core.tuples import quickly

# a hole costs a program header and a mapping at load time; smaller ones are filled with zeros instead
MIN_HOLE = 16 << 10
MAX_HOLES = 192
MAX_ALIGNMENT = 256

EXECUTE = 1  # of the flags of a segment
_LARGEST_PAGE = {ElfMachine.X86_64: 0x1000, ElfMachine.AARCH64: 0x10000}


class UnsupportedLayoutError(ImpossibleError):
    """A library is whole, but laid out in a way that the surgery does not know."""

    def __init__(self, message: str, hint: str = "Use it as it is, or link it again with a current linker.") -> None:
        super().__init__(message, hint)


class Span(NamedTuple):
    """A range of addresses, the end excluded (a tuple: there are tens of thousands, and they get sorted)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


as_span = quickly(Span)


class PackingItem(NamedTuple):
    """A container to place: what it took, what it takes now, and whether it can move."""

    address: int
    old_size: int
    new_size: int
    movable: bool


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """A part of a loaded segment that stays in the file."""

    segment: Segment
    address: int
    file_size: int
    memory_size: int
    alignment: int
    offset: int = 0  # in the new file

    @property
    def end(self) -> int:
        return self.address + self.file_size

    @property
    def old_offset(self) -> int:
        return self.segment.offset + self.address - self.segment.address


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def subtract(ranges: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """What is left of `ranges` without `taken`; both sorted and without overlap in themselves."""
    left: list[Span] = []
    cuts = sorted(taken)
    index, count = 0, len(cuts)
    for span in ranges:
        start, end = span
        while index < count and cuts[index][1] <= start:
            index += 1
        while index < count:
            cut_start, cut_end = cuts[index]
            if cut_start >= end:
                break
            if cut_start > start:
                left.append(as_span((start, cut_start)))
            start = max(start, cut_end)
            if start >= end:
                break
            index += 1
        if start < end:
            left.append(as_span((start, end)))
    return left


def merge(ranges: Iterable[Span]) -> list[Span]:
    """The same addresses in as few ranges as possible."""
    merged: list[Span] = []
    ordered = iter(sorted(ranges))
    start, reached = next(ordered, (0, 0))
    for begin, end in ordered:
        if begin > reached:
            merged.append(as_span((start, reached)))
            start, reached = begin, end
        elif end > reached:
            reached = end
    return [*merged, Span(start, reached)] if reached else merged


def common_alignment(addresses: Iterable[int]) -> int:
    """The largest power of two, up to 256, that all addresses are multiples of."""
    bits = MAX_ALIGNMENT
    for address in addresses:
        bits |= address
    return bits & -bits


def pack(items: Sequence[PackingItem], room: Sequence[Span]) -> list[int]:
    """New addresses for items in the order of their addresses, each as far towards the start as there is room.

    `room` are the ranges that containers may take: those they have now. No item ever moves up, and none overtakes
    one that stays, so the order and the fit are certain as long as no item grows.
    """
    alignment = common_alignment(item.address for item in items if item.movable)
    fixed = [Span(item.address, item.address + item.new_size) for item in items if not item.movable]
    free = subtract(room, fixed)
    addresses: list[int] = []
    index, cursor = 0, free[0].start if free else 0
    for item in items:
        if not item.movable:
            addresses.append(item.address)
            cursor = item.address + item.new_size
            continue
        while (start := align_up(max(cursor, free[index].start), alignment)) + item.new_size > free[index].end:
            index += 1
        addresses.append(start)
        cursor = start + item.new_size
    return addresses


def page_size(machine: ElfMachine, loads: Sequence[Segment]) -> int:
    """The page size holes must respect: the largest the machine may have, if the file was made for it."""
    return min([_LARGEST_PAGE[machine], *(load.alignment for load in loads)])


def choose_holes(free: Iterable[Span], page: int) -> list[Span]:
    """The free ranges worth a split: the largest ones, each of whole pages at least."""

    def gain(span: Span) -> int:
        return span.end // page * page - align_up(span.start, page)

    least = max(page, MIN_HOLE)
    worth = [span for span in free if span.end - span.start >= least and gain(span) >= least]
    return sorted(sorted(worth, key=gain, reverse=True)[:MAX_HOLES])


def split(load: Segment, holes: Iterable[Span], page: int, *, first: bool) -> Iterator[SegmentPiece]:
    """The pieces of one loaded segment without the holes.

    The first segment keeps its alignment, from which the loader takes the alignment of the whole library, and so
    does the start of an executable one, whose large pages depend on it. Others need no more than a page.
    """
    if load.file_size == 0:  # zeroed memory and nothing else
        yield SegmentPiece(load, load.address, 0, load.memory_size, load.alignment)
        return
    file_end = load.address + load.file_size
    inside = [hole for hole in holes if load.address <= hole.start and hole.end <= file_end]
    rest = subtract([Span(load.address, file_end)], inside)
    if not rest or (load.memory_size > load.file_size and rest[-1].end != file_end):
        raise ValueError("a hole may not take a whole segment, nor the bytes before zeroed memory")
    for span in rest:
        keeps = span.start == load.address and (first or load.flags & EXECUTE)
        tail = load.memory_size - load.file_size if span.end == file_end else 0
        alignment = load.alignment if keeps else min(load.alignment, page)
        yield SegmentPiece(load, span.start, span.size, span.size + tail, alignment)


def place(pieces: Iterable[SegmentPiece]) -> list[SegmentPiece]:
    """Give each piece the least file offset that is behind the last one and congruent to its address."""
    placed: list[SegmentPiece] = []
    cursor = 0
    for piece in pieces:
        offset = cursor + (piece.address - cursor) % piece.alignment
        placed.append(replace(piece, offset=offset))
        cursor = offset + piece.file_size
    return placed


class AddressMap:
    """From addresses to offsets in the new file."""

    def __init__(self, pieces: Sequence[SegmentPiece]) -> None:
        self._pieces = sorted(pieces, key=lambda piece: piece.address)
        self._starts = [piece.address for piece in self._pieces]

    def piece(self, address: int) -> SegmentPiece | None:
        """The piece whose memory has this address, its zeroed tail included."""
        index = bisect_left(self._starts, address + 1) - 1
        if index >= 0 and address < self._pieces[index].address + max(self._pieces[index].memory_size, 1):
            return self._pieces[index]
        return None

    def offset(self, address: int) -> int | None:
        """The offset of the byte at an address, or where it would be; None in a hole."""
        piece = self.piece(address)
        if piece is None:
            return None
        return piece.offset + min(address - piece.address, piece.file_size)

    def empty_offset(self, address: int) -> int:
        """The offset of what has no bytes, such as thread-local zeros between two segments: behind what is before."""
        offset = self.offset(address)
        if offset is not None:
            return offset
        index = bisect_left(self._starts, address) - 1
        return self._pieces[index].offset + self._pieces[index].file_size if index >= 0 else 0
