"""The surgery: from a plan to the new file.

What is loaded keeps its address. Only containers move, only inside their section, and every pointer to them
follows. Holes leave the file, the program header table grows by one entry for each, and whatever is not loaded
follows behind in its old order.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torchtailor.code.binary.elf import FETCH_AGAIN, ElfFile
from torchtailor.code.binary.elf_headers import (
    HEADER,
    PROGRAM_HEADER,
    SECTION_HEADER,
    FileType,
    Relocation,
    Section,
    SegmentType,
)
from torchtailor.code.binary.instructions import got_address
from torchtailor.code.gpucode.fatbin import CONTAINER_HEADER, CONTAINER_MAGIC, TICKET, TICKET_MARK
from torchtailor.core.disk import write_at
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.files import CHUNK, FileSource, copy_range, write_patches
from torchtailor.surgery.headers import (
    TABLE_MARK,
    HeaderTable,
    SectionPlan,
    TableHome,
    find_home,
    plan_sections,
    program_headers,
    sections_in_place,
    symbol_numbers,
)
from torchtailor.surgery.layout import (
    MAX_HOLES,
    MIN_HOLE,
    AddressMap,
    SegmentPiece,
    Span,
    UnsupportedLayoutError,
    choose_holes,
    merge,
    page_size,
    place,
    split,
    subtract,
)
from torchtailor.surgery.plan import ContainerPlan, LibraryPlan

ADDEND_FIELD = 16  # in a RELA record

_MIN_ALIGNMENT = 0x1000
_MAX_ALIGNMENT = 1 << 30
_MOST_HEADERS = 0xF000  # more do not fit the fields of the file header
_MAX_PADDING = 64  # zeros between two containers
_WORTH_ZEROS = 1 << 20  # for less a library is not written anew


@dataclass(frozen=True)
class Surgery:
    """Everything that is known about the output before a byte of it is written."""

    elf: ElfFile
    plan: LibraryPlan
    holes: tuple[Span, ...]
    pieces: tuple[SegmentPiece, ...]
    home: TableHome
    sections: SectionPlan
    filler: tuple[Span, ...]  # those of the holes that were filler, not code

    @property
    def size(self) -> int:
        return self.sections.file_size

    @cached_property
    def zeroed(self) -> int:
        """Bytes of removed code that stay in the file as zeros, if they are worth a new file.

        A program has no holes, as its program headers cannot move; a container that host code reaches in an unknown
        way has to stay, and most are smaller than a page. But wheels compress zeros away, and the disk stores none.
        """
        before = sum(plan.found.container.stored_size for plan in self.plan.containers)
        left = before - sum(plan.size for plan in self.plan.containers)
        left -= sum(hole.size for hole in self.holes) - sum(hole.size for hole in self.filler)
        pieces = (span.size for span in subtract(self.plan.free, self.holes))
        return left if left >= _WORTH_ZEROS or any(size >= MIN_HOLE for size in pieces) else 0

    @cached_property
    def addresses(self) -> AddressMap:
        return AddressMap(self.pieces)

    def offset(self, address: int) -> int:
        """Where the byte at an address is in the output."""
        offset = self.addresses.offset(address)
        if offset is None:
            raise UnsupportedLayoutError(f"A pointer to GPU code at {address:#x} is in no loaded segment.")
        return offset


def prepare(
    elf: ElfFile,
    plan: LibraryPlan,
    removed: frozenset[int],
    filler: tuple[Span, ...] = (),
    dead: tuple[Section, ...] = (),
) -> Surgery:
    """Work out the new layout of a library that `check_layout` passed; `removed` sections are left out, and `filler`
    and `dead` sections if there is room for the program headers of their holes."""
    page = page_size(elf.machine, elf.loads)
    holes = choose_holes(_free_of_segments(elf, plan, page), page)
    tables = {section.index: Span(section.address, section.memory_end) for section in dead}
    filler = tuple(choose_holes(merge([*filler, *tables.values()]), page)[: MAX_HOLES - len(holes)])
    count = len(elf.segments) + _splits(elf, sorted([*holes, *filler]))
    home = find_home(elf, count, [*holes, *filler], page)
    if home.room < count * PROGRAM_HEADER.size:
        filler, home = (), find_home(elf, count, holes, page)
    holes = sorted(home.holes)
    pieces = place(piece for load in elf.loads for piece in split(load, holes, page, first=load is elf.loads[0]))
    end = pieces[-1].offset + pieces[-1].file_size
    removed |= {index for index, span in tables.items() if not subtract([span], filler)}
    sections = plan_sections(elf, plan, AddressMap(pieces), holes, home, removed, end)
    nothing_moves = not (holes or removed or home.moved) and all(piece.offset == piece.old_offset for piece in pieces)
    if sections.file_size > elf.source.size and nothing_moves:
        sections = sections_in_place(elf, sections)
    return Surgery(elf, plan, tuple(holes), tuple(pieces), home, sections, filler)


def check_layout(elf: ElfFile) -> None:
    """Refuse a layout that linkers do not produce."""
    if elf.header.type not in (FileType.SHARED, FileType.EXECUTABLE) or not elf.loads:
        raise BadInputError("It is not a linked library: nothing of it is loaded.", "Give a shared library (.so).")
    if not elf.sections:
        raise BadInputError("It has no section headers, so its layout is unknown.")
    if max(len(elf.sections), len(elf.segments)) >= _MOST_HEADERS:
        raise UnsupportedLayoutError(
            f"It has {len(elf.sections)} sections and {len(elf.segments)} segments, which is too many."
        )
    first = elf.loads[0]
    if first.offset != 0 or first.file_size < 64:
        raise UnsupportedLayoutError("Its first loaded segment does not begin with the file header.")
    for load in elf.loads:
        alignment = load.alignment
        if (
            not _MIN_ALIGNMENT <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
            or (load.address - load.offset) % alignment
        ):
            raise UnsupportedLayoutError(f"Program header {load.index} is not aligned as the loader demands.")
    _check_section_places(elf)
    _check_end(elf)


def _check_end(elf: ElfFile) -> None:
    """What no header speaks of would not be in the output, and whoever put it there may look for it."""
    ends = [section.file_end for section in elf.sections if section.in_file]
    ends += [load.file_end for load in elf.loads]
    ends.append(elf.header.section_table_offset + len(elf.sections) * SECTION_HEADER.size)
    ends.append(elf.header.segment_table_offset + len(elf.segments) * PROGRAM_HEADER.size)
    for start in range(max(ends), elf.size, CHUNK):
        if any(elf.read(start, min(CHUNK, elf.size - start))):
            raise BadInputError(
                f"Other data follows its last section, at {max(ends):#x}, and a cut would lose it.",
                "Use it as it is, or cut the library before that data is added.",
            )


def _check_section_places(elf: ElfFile) -> None:
    """A section that is loaded lies in the file where its address says, or one of the two is damaged."""
    for section in elf.sections:
        alignment = section.alignment
        if alignment > _MAX_ALIGNMENT or alignment & (alignment - 1) or section.link >= len(elf.sections):
            raise BadInputError(f"The header of section {section.name or section.index} is damaged.")
        if not (section.allocated and section.in_file):
            continue
        if elf.load_at(section.address) is None and not any(
            load.offset < section.file_end and section.offset < load.file_end for load in elf.loads
        ):
            continue
        place = (elf.offset_of(section.address), elf.offset_of(section.memory_end - 1))
        if place != (section.offset, section.file_end - 1):
            raise BadInputError(
                f"Section {section.name} is not where its address says.",
                FETCH_AGAIN,
            )
    others = [s for s in elf.sections if s.in_file and not s.allocated]
    for section in others:
        if any(load.offset < section.file_end and section.offset < load.file_end for load in elf.loads):
            raise BadInputError(f"Section {section.name} is not loaded, and lies where loaded bytes are.")
    for segment in elf.segments:
        plain = segment.type in (SegmentType.LOAD, SegmentType.PHDR) or not segment.file_size
        if not plain and elf.offset_of(segment.address) not in (None, segment.offset):
            raise BadInputError(f"Program header {segment.index} is not where its address says.")


def _free_of_segments(elf: ElfFile, plan: LibraryPlan, page: int) -> Iterator[Span]:
    """The free ranges that no segment needs whole."""
    small = [s for s in elf.segments if s.type != SegmentType.LOAD and s.memory_size]
    for span in plan.unreachable:
        if span.end - span.start < MIN_HOLE:
            continue
        load = elf.load_at(span.start)
        if load is None or any(s.address < span.end and span.start < s.memory_end for s in small):
            continue
        file_end = load.address + load.file_size
        end = min(span.end, file_end if load.memory_size == load.file_size else file_end - page)
        if end > span.start and (span.start > load.address or end < file_end):
            yield Span(span.start, end)


def _splits(elf: ElfFile, holes: list[Span]) -> int:
    """By how many the loaded segments grow."""
    pieces = 0
    for load in elf.loads:
        whole = Span(load.address, load.address + load.file_size)
        pieces += max(1, len(subtract([whole], holes)))  # one without bytes in the file stays one
    return pieces - len(elf.loads)


def write(surgery: Surgery, source: FileSource, fd: int) -> None:
    """Write the output to an empty file; what is not written is zero."""
    os.ftruncate(fd, surgery.size)
    plans = sorted(
        (plan for plan in surgery.plan.containers if plan.address is not None), key=lambda plan: plan.address or 0
    )
    addresses = [plan.address or 0 for plan in plans]
    for piece in surgery.pieces:
        inside = plans[bisect_left(addresses, piece.address) : bisect_left(addresses, piece.end)]
        _write_piece(surgery, piece, inside, source, fd)
    for old, new, size in surgery.sections.unloaded:
        copy_range(source, old, fd, new, size)
    write_patches(fd, patches(surgery))
    write_at(fd, *surgery.sections.names)
    write_at(fd, surgery.sections.table.offset, surgery.sections.table.data)


def _write_piece(
    surgery: Surgery, piece: SegmentPiece, plans: list[ContainerPlan], source: FileSource, fd: int
) -> None:
    """Write one piece: host bytes as they were, containers from what is kept of them."""
    copies = _Copies(source, fd)
    shift = piece.offset - piece.address
    free = [span for span in surgery.plan.free if span.start < piece.end and span.end > piece.address]
    taken = [Span(plan.address or 0, (plan.address or 0) + plan.size + plan.gap) for plan in plans]
    whole = Span(piece.address, piece.end)
    for span in subtract([whole], merge([*free, *taken])):
        copies.add(piece.old_offset + span.start - piece.address, span.start + shift, span.size)
    for plan in plans:
        _write_container(plan, (plan.address or 0) + shift, copies, fd)
    copies.flush()


def _write_container(plan: ContainerPlan, at: int, copies: _Copies, fd: int) -> None:
    if plan.whole:
        copies.add(plan.found.container.offset, at, plan.size, padded=True)
        return
    body = plan.size - CONTAINER_HEADER.size
    if plan.key:
        ticket = TICKET.pack(TICKET_MARK, plan.key)
        write_at(fd, at, CONTAINER_HEADER.pack(CONTAINER_MAGIC, 1, CONTAINER_HEADER.size, 0) + ticket)
        return
    write_at(fd, at, CONTAINER_HEADER.pack(CONTAINER_MAGIC, 1, CONTAINER_HEADER.size, body))
    at += CONTAINER_HEADER.size
    for new in plan.images:
        if new.replacement is None:
            copies.add(new.image.offset, at, new.size)
        else:
            write_at(fd, at, new.replacement.read())
        at += new.size


class _Copies:
    """Copies that follow each other in both files are done as one, with the padding between whole containers."""

    def __init__(self, source: FileSource, fd: int) -> None:
        self._source, self._fd = source, fd
        self._pending, self._padded = (0, 0, 0), False

    def add(self, old: int, new: int, size: int, *, padded: bool = False) -> None:
        before, at, length = self._pending
        between = old - before - length
        near = between == 0 or (padded and self._padded and self._is_padding(before + length, between))
        if length and near and new - at - length == between:
            self._pending = (before, at, length + between + size)
            return
        self.flush()
        self._pending, self._padded = (old, new, size), padded

    def _is_padding(self, at: int, size: int) -> bool:
        return 0 < size < _MAX_PADDING and not any(self._source.read(at, size))

    def flush(self) -> None:
        old, new, size = self._pending
        if size:
            copy_range(self._source, old, self._fd, new, size)
        self._pending = (0, 0, 0)


def patches(surgery: Surgery) -> Iterator[tuple[int, bytes]]:
    """The bytes outside of containers that change, as (offset in the output, bytes)."""
    table = program_headers(surgery.elf, surgery.pieces, surgery.addresses, surgery.home)
    yield table.offset, table.data
    if surgery.home.moved:
        yield table.offset + len(table.data), bytes(surgery.home.room - len(table.data))
        yield table.offset + surgery.home.room, TABLE_MARK
    yield 0, _file_header(surgery, table)
    for address, number in symbol_numbers(surgery.elf, surgery.sections.split):
        yield surgery.offset(address), number.to_bytes(2, "little")
    for plan in surgery.plan.containers:
        if plan.address is None or plan.pointers is None:
            continue
        if plan.address != plan.found.address:
            for pointer in plan.pointers.to_start:
                yield from _repoint(surgery, pointer, plan.address)
            for place_ in plan.pointers.immediates:
                got = got_address(surgery.elf) or 0
                yield surgery.offset(place_), (plan.address - got).to_bytes(8, "little", signed=True)
        for pointer in plan.pointers.to_end:
            yield from _repoint(surgery, pointer, plan.address + plan.size + plan.gap)


def _repoint(surgery: Surgery, pointer: Relocation, target: int) -> Iterator[tuple[int, bytes]]:
    """A relocated pointer: its record, and the copy of the addend in place if there is one."""
    data = target.to_bytes(8, "little")
    if pointer.record_offset is not None:
        address = surgery.elf.address_of(pointer.record_offset)
        if address is None:
            raise UnsupportedLayoutError("Its relocations are not in a loaded segment.")
        yield surgery.offset(address) + ADDEND_FIELD, data
    if surgery.elf.pointer_at(pointer.place) == pointer.addend:
        yield surgery.offset(pointer.place), data


def _file_header(surgery: Surgery, table: HeaderTable) -> bytes:
    fields = list(HEADER.unpack(surgery.elf.read(0, HEADER.size)))
    sections = surgery.sections
    fields[5:7] = [table.offset, sections.table.offset]
    fields[10] = table.count
    fields[12:14] = [sections.table.count, sections.names_index]
    return HEADER.pack(*fields)
