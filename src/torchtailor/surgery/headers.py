"""The new program and section headers, and where the grown program header table lives.

The table has to lie in a loaded segment. It is not moved if it did not grow, or if the bytes behind it are only
filling. Otherwise it moves into a hole, at the start of a segment of its own that goes on with a small section:
`strip` puts the table before the first section of its segment, so it finds everything where it wants it, and it
throws away a segment that has no section at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    HEADER,
    PROGRAM_HEADER,
    SECTION_HEADER,
    SYMBOL,
    Section,
    SectionFlag,
    SectionType,
    SegmentType,
)
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS
from torchtailor.surgery.layout import (
    EXECUTE,
    AddressMap,
    SegmentPiece,
    Span,
    UnsupportedLayoutError,
    align_up,
    subtract,
)
from torchtailor.surgery.plan import LibraryPlan
from torchtailor.surgery.strip import moves_symbols

TABLE_SECTION = ".torchtailor"
TABLE_MARK = b"program headers\0"
SPARE_HEADERS = 8  # for tools that add a segment to the output and do not ask whether there is room

_INFO_LINK = 0x40
_SYMBOL_SECTION = 6  # the byte of a symbol at which the number of its section is
_FILLINGS = (b"\0", b"Z", b"X")  # patchelf fills what it moved away with one of the letters


@dataclass(frozen=True, slots=True)
class TableHome:
    """Where the program header table is in memory, the room it has, and the remaining holes."""

    address: int
    room: int
    moved: bool
    holes: tuple[Span, ...]

    @property
    def end(self) -> int:
        """Where the table's own segment ends, if it has one."""
        return self.address + self.room + len(TABLE_MARK)


def find_home(elf: ElfFile, count: int, holes: Sequence[Span], page: int) -> TableHome:
    """Find a place for a table of `count` program headers; without one there can be no holes."""
    offset = elf.header.segment_table_offset
    address = elf.address_of(offset)
    size = count * PROGRAM_HEADER.size
    if address is not None and (count <= len(elf.segments) or size <= _room_behind(elf, offset, size)):
        return TableHome(address, size, False, tuple(holes))
    room = (count + 1 + SPARE_HEADERS) * PROGRAM_HEADER.size
    program = any(segment.type == SegmentType.INTERP for segment in elf.segments)
    # the kernel tells a program where its headers are, and until Linux 5.18 it told wrong if they had moved
    for index, hole in enumerate(() if program else holes):
        start = align_up(hole.start, 8) + page  # a page of its own; the offset in the file follows on
        end = start + room + len(TABLE_MARK)
        if align_up(end, page) < hole.end // page * page:
            around = [Span(hole.start, start), Span(end, hole.end)]
            return TableHome(start, room, True, (*holes[:index], *around, *holes[index + 1 :]))
    if address is None:
        raise UnsupportedLayoutError("Its program headers are not in a loaded segment.")
    return TableHome(address, len(elf.segments) * PROGRAM_HEADER.size, False, ())


def _room_behind(elf: ElfFile, offset: int, wanted: int) -> int:
    """How far the table could grow where it is, into bytes that are nobody's."""
    old = len(elf.segments) * PROGRAM_HEADER.size
    load = next(load for load in elf.loads if load.offset <= offset < load.file_end)
    starts = [s.offset for s in elf.sections if s.in_file and s.file_end > offset]
    tables = [elf.header.section_table_offset]
    limit = min([load.file_end, *starts, *(at for at in tables if at >= offset)])
    ours = any(s.name == TABLE_SECTION and s.offset == limit for s in elf.sections)  # of an earlier tailoring
    if limit < offset + wanted or (offset != HEADER.size and not ours):
        return 0  # elsewhere, such as before the code that BOLT moved, `strip` would lose the table
    filling = bytes(elf.read(offset + old, wanted - old))
    return wanted if any(not filling.strip(letter) for letter in _FILLINGS) else 0


@dataclass(frozen=True, slots=True)
class HeaderTable:
    """A finished table and where it goes in the file."""

    offset: int
    count: int
    data: bytes


def program_headers(
    elf: ElfFile, pieces: Sequence[SegmentPiece], addresses: AddressMap, home: TableHome
) -> HeaderTable:
    """The new program headers, in the old order with the pieces of a segment in its place."""
    by_segment: dict[int, list[SegmentPiece]] = {}
    for piece in pieces:
        by_segment.setdefault(piece.segment.index, []).append(piece)
    count = len(elf.segments) - len(by_segment) + len(pieces)
    rows: list[tuple[int, ...]] = []
    for segment in elf.segments:
        row = (segment.type, segment.flags, segment.offset, segment.address, segment.physical_address)
        if segment.type == SegmentType.LOAD:
            for piece in by_segment[segment.index]:
                shift = piece.address - segment.address
                where = (piece.offset, piece.address, (segment.physical_address + shift) % 2**64)
                flags = _flags(elf, piece) if len(by_segment[segment.index]) > 1 else segment.flags
                rows.append((segment.type, flags, *where, piece.file_size, piece.memory_size, piece.alignment))
        elif segment.type == SegmentType.PHDR:
            size = count * PROGRAM_HEADER.size
            where = (_offset(addresses, home.address), home.address, home.address)
            rows.append((*row[:2], *where, size, size, segment.alignment))
        else:
            moved = addresses.empty_offset(segment.address)  # those that are not loaded have no bytes either
            rows.append((*row[:2], moved, *row[3:], segment.file_size, segment.memory_size, segment.alignment))
    data = b"".join(PROGRAM_HEADER.pack(*row) for row in rows)
    return HeaderTable(_offset(addresses, home.address), len(rows), data)


def _flags(elf: ElfFile, piece: SegmentPiece) -> int:
    """The flags of a piece: where an executable segment was split, pieces with nothing but data need not be that."""
    inside = [s for s in elf.sections if s.allocated and s.address < piece.end and s.memory_end > piece.address]
    data = inside and not any(section.flags & SectionFlag.EXECUTE for section in inside)
    return piece.segment.flags & ~EXECUTE if data else piece.segment.flags


def _offset(addresses: AddressMap, address: int) -> int:
    offset = addresses.offset(address)
    if offset is None:
        raise UnsupportedLayoutError(f"Address {address:#x} would be in no loaded segment.")
    return offset


class SplitOff(NamedTuple):
    """A part of a section that has a header of its own, because a hole is before it."""

    section: int  # the number of the section's first part, old and new
    span: Span
    number: int


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """The new section headers, and what follows behind the loaded bytes."""

    table: HeaderTable
    names_index: int
    unloaded: tuple[tuple[int, int, int], ...]  # (old offset, new offset, size)
    names: tuple[int, bytes]  # where the section names go, and all of them
    file_size: int
    split: tuple[SplitOff, ...]  # what was split off sections that stay under their old numbers


def plan_sections(
    elf: ElfFile,
    plan: LibraryPlan,
    addresses: AddressMap,
    holes: Sequence[Span],
    home: TableHome,
    removed: frozenset[int],
    loaded_end: int,
) -> SectionPlan:
    """Lay out everything behind the loaded bytes and write the section headers."""
    emptied = removed if moves_symbols(elf, removed) else frozenset()
    stays = [s for s in elf.sections if s.index not in removed or s.index in emptied]
    number = {section.index: new for new, section in enumerate(stays)}
    names = bytes(elf.content(elf.sections[elf.header.name_section])) or b"\0"
    used = _used(plan)
    without = [*holes, Span(home.address, home.end)] if home.moved else list(holes)
    layout = SectionLayout(addresses, loaded_end)
    rows: list[list[int]] = []
    extra: list[list[int]] = []
    split: list[SplitOff] = []
    for section in stays:
        row = _row(section, number)
        if section.index in emptied:
            row[1:6] = [SectionType.PROGBITS, 0, 0, layout.end, 0]
            row[6:8] = [0, 0]
        elif section.index == elf.header.name_section:
            pass  # goes last, with the new name in it
        elif section.allocated and addresses.offset(section.address) is not None:
            parts = _parts(section, without, used)
            row[3:6] = [parts[0].start, _offset(addresses, parts[0].start), parts[0].size]
            for part in parts[1:]:
                split.append(SplitOff(section.index, part, len(stays) + len(extra)))
                more = [*row]
                more[3:6] = [part.start, _offset(addresses, part.start), part.size]
                extra.append(more)
        else:
            row[4] = layout.place(section)
        rows.append(row)
    if home.moved:
        names, at = names + TABLE_SECTION.encode() + b"\0", len(names)
        extra.append(mark_row(home, at, addresses))
    return layout.finish([*rows, *extra], number[elf.header.name_section], names, split)


def mark_row(home: TableHome, name: int, addresses: AddressMap) -> list[int]:
    """The header of the small section behind a program header table that has moved."""
    mark = home.address + home.room
    where = [mark, _offset(addresses, mark), len(TABLE_MARK)]
    return [name, SectionType.PROGBITS, SectionFlag.ALLOC, *where, 0, 0, 8, 0]


def sections_in_place(elf: ElfFile, sections: SectionPlan) -> SectionPlan:
    """The same section headers where they are now, with all that is not loaded.

    patchelf puts both into the gap before the segment that it adds; behind that, the file would grow.
    """
    rows = [list(row) for row in SECTION_HEADER.iter_unpack(sections.table.data)]
    for section, row in zip(elf.sections, rows, strict=True):
        row[4] = section.offset
    data = b"".join(SECTION_HEADER.pack(*row) for row in rows)
    names = elf.sections[elf.header.name_section]
    return SectionPlan(
        table=HeaderTable(elf.header.section_table_offset, len(rows), data),
        names_index=sections.names_index,
        unloaded=tuple((old, old, size) for old, _, size in sections.unloaded),
        names=(names.offset, sections.names[1]),
        file_size=elf.source.size,
        split=(),
    )


class SectionLayout:
    """Gives what is not loaded its place behind the loaded bytes, in its old order."""

    def __init__(self, addresses: AddressMap, loaded_end: int) -> None:
        self._addresses = addresses
        self._unloaded: list[tuple[int, int, int]] = []
        self.end = loaded_end

    def place(self, section: Section) -> int:
        """The offset of a section that has no loaded bytes."""
        if not section.in_file:
            if section.allocated:
                return self._addresses.empty_offset(section.address)
            return self.end if section.index else section.offset
        at = align_up(self.end, max(1, section.alignment))
        self._unloaded.append((section.offset, at, section.size))
        self.end = at + section.size
        return at

    def finish(
        self, rows: list[list[int]], names_index: int, names: bytes, split: Sequence[SplitOff] = ()
    ) -> SectionPlan:
        """All section headers, behind the names of sections, which come last."""
        rows[names_index][4:6] = [self.end, len(names)]
        data = b"".join(SECTION_HEADER.pack(*row) for row in rows)
        table = HeaderTable(align_up(self.end + len(names), 8), len(rows), data)
        return SectionPlan(
            table=table,
            names_index=names_index,
            unloaded=tuple(self._unloaded),
            names=(self.end, names),
            file_size=table.offset + len(data),
            split=tuple(split),
        )


def symbol_numbers(elf: ElfFile, split: Sequence[SplitOff]) -> Iterator[tuple[int, int]]:
    """(address, number) of the section numbers of dynamic symbols that are in a part split off their section."""
    table = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if table is None or not split:
        return
    parts: dict[int, list[SplitOff]] = {}
    for part in split:
        parts.setdefault(part.section, []).append(part)
    content = elf.content(table)
    whole = content[: len(content) - len(content) % SYMBOL.size]
    for row, (_, _, _, index, value, _) in enumerate(SYMBOL.iter_unpack(whole)):
        for part in parts.get(index, ()):
            if part.span.start <= value < part.span.end:
                yield table.address + row * SYMBOL.size + _SYMBOL_SECTION, part.number


def _row(section: Section, number: Mapping[int, int]) -> list[int]:
    info = section.info
    if section.flags & _INFO_LINK:
        info = number.get(info, 0)
    return [*header_row(section)[:6], number.get(section.link, 0), info, section.alignment, section.entry_size]


def header_row(section: Section) -> list[int]:
    """The fields of a section's header."""
    return [
        section.name_offset,
        section.type,
        section.flags,
        section.address,
        section.offset,
        section.size,
        section.link,
        section.info,
        section.alignment,
        section.entry_size,
    ]


def _used(plan: LibraryPlan) -> list[Span]:
    """The addresses of containers in the output, as far as they may be read."""
    return sorted(container.reach for container in plan.containers if container.address is not None)


def _parts(section: Section, holes: Sequence[Span], used: Iterable[Span]) -> list[Span]:
    """What is left of a section: cut at holes, and at the last container where it holds nothing else."""
    whole = Span(section.address, section.memory_end)
    if not section.in_file:
        return [whole]
    parts = subtract([whole], [hole for hole in holes if hole.start < whole.end and hole.end > whole.start])
    if section.name not in CONTAINER_SECTIONS:
        return parts or [Span(whole.start, whole.start)]
    trimmed: list[Span] = []
    for part in parts:
        inside = [span for span in used if part.start <= span.start and span.end <= part.end]
        if inside:
            trimmed.append(Span(inside[0].start if trimmed else part.start, max(span.end for span in inside)))
    return trimmed or [Span(whole.start, whole.start)]
