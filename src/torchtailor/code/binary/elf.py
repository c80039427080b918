"""A strict reader of 64-bit little-endian ELF files (x86_64 and aarch64).

Only headers are read when a file is opened; contents and relocations are read when asked for. Everything is
checked against the size of the file, so a damaged file gives BadInputError and nothing else.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from torchtailor.code.binary.elf_headers import (
    DYNAMIC_ENTRY,
    HEADER,
    MAGIC,
    PROGRAM_HEADER,
    RELA,
    SECTION_HEADER,
    DynamicEntry,
    DynamicTag,
    ElfMachine,
    FileType,
    Header,
    Relocation,
    Section,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.code.binary.search import Buffer
from torchtailor.code.binary.source import BufferSource, Bytes, ByteSource
from torchtailor.core.errors import BadInputError
from torchtailor.core.tuples import quickly

_MAX_SECTIONS = 1 << 20
_BLOCK = 1 << 10  # relocations that are looked at together: most often none of them is wanted
_relocation = quickly(Relocation)
_EXTENDED = 0xFFFF  # the true number does not fit 16 bits and stands in section header 0


FETCH_AGAIN = "Fetch the library again and compare its hash with the publisher's."


class NotElfError(BadInputError):
    """The file does not begin like an ELF file at all."""


class UnsupportedElfError(BadInputError):
    """An ELF file, and maybe a whole one, but not for a processor whose libraries we read."""


class RelaTable:
    """The RELA relocations of a file, column by column so that hundreds of thousands cost little."""

    def __init__(self, data: Bytes, offset: int, relative_type: int) -> None:
        words = array("Q")
        words.frombytes(data)
        self.offset = offset
        self.places = words[0::3]
        self.infos = words[1::3]
        signed = array("q")
        signed.frombytes(words[2::3].tobytes())
        self.addends = signed
        self._relative_info = relative_type  # RELATIVE has no symbol, so info is the type alone

    @cached_property
    def _extents(self) -> list[tuple[int, int, int, int, int]]:
        """For each block of the table where it begins, and the least and the largest place and addend in it."""
        extents = []
        for start in range(0, len(self.places), _BLOCK):
            places, addends = self.places[start : start + _BLOCK], self.addends[start : start + _BLOCK]
            extents.append((start, min(places), max(places), min(addends), max(addends)))
        return extents

    def __len__(self) -> int:
        return len(self.places)

    def record_offset(self, index: int) -> int:
        """Where the index-th record stands in the file."""
        return self.offset + index * RELA.size

    def is_relative(self, index: int) -> bool:
        return self.infos[index] == self._relative_info

    def placed_in(self, start: int, end: int) -> list[int]:
        """Indices, of any type, whose pointer lies in the address range."""
        return [
            i
            for first, low, high, _, _ in self._extents
            if low < end and start <= high
            for i, place in enumerate(self.places[first : first + _BLOCK], first)
            if start <= place < end
        ]

    def placed_at(self, addresses: Collection[int]) -> list[int]:
        """Indices, of any type, whose pointer lies at one of the addresses."""
        wanted = frozenset(addresses)
        least, largest = min(wanted, default=0), max(wanted, default=-1)
        return [
            i
            for first, low, high, _, _ in self._extents
            if low <= largest and least <= high
            for i, place in enumerate(self.places[first : first + _BLOCK], first)
            if place in wanted
        ]

    def pointing_into(self, start: int, end: int) -> list[int]:
        """Indices of RELATIVE relocations whose target lies in the address range."""
        kind, infos = self._relative_info, self.infos
        return [
            i
            for first, _, _, low, high in self._extents
            if low < end and start <= high
            for i, addend in enumerate(self.addends[first : first + _BLOCK], first)
            if start <= addend < end and infos[i] == kind
        ]

    def pointing_to(self, targets: Collection[int]) -> list[int]:
        """Indices of RELATIVE relocations that lead to one of the addresses."""
        kind, infos, addends = self._relative_info, self.infos, self.addends
        wanted = frozenset(targets)
        least, largest = min(wanted, default=0), max(wanted, default=-1)
        return [
            i
            for first, _, _, low, high in self._extents
            if low <= largest and least <= high
            for i, addend in enumerate(addends[first : first + _BLOCK], first)
            if addend in wanted and infos[i] == kind
        ]

    def relocations(self, indices: Iterable[int]) -> Iterator[Relocation]:
        offset, places, addends = self.offset, self.places, self.addends
        return (_relocation((offset + i * RELA.size, places[i], addends[i])) for i in indices)


class ElfFile:
    """An ELF file whose headers have been read and checked."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.header = _read_header(source)
        self.segments = self._read_segments()
        self.sections = self._read_sections()
        self._loads = sorted(
            (s for s in self.segments if s.type == SegmentType.LOAD), key=lambda segment: segment.address
        )
        self._load_addresses = [segment.address for segment in self._loads]
        self._near = (0, 0, 0)  # addresses of the segment that was asked for last, and from them to the file
        _check_loads(self._loads)
        _check_sections(self.sections)

    @classmethod
    def from_buffer(cls, buffer: Buffer) -> ElfFile:
        """Read a buffer or a memory map."""
        return cls(BufferSource(buffer))

    @property
    def machine(self) -> ElfMachine:
        return self.header.machine

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def loads(self) -> list[Segment]:
        """The loaded segments in the order of their addresses."""
        return self._loads

    def read(self, offset: int, size: int) -> Bytes:
        return self.source.read(offset, size)

    # -- sections --------

    @cached_property
    def _by_name(self) -> dict[str, Section]:
        return {section.name: section for section in reversed(self.sections)}

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return self._by_name.get(name)

    def content(self, section: Section) -> Bytes:
        """The bytes a section has in the file."""
        return self.source.read(section.offset, section.size) if section.in_file else b""

    # -- addresses --------

    def load_at(self, address: int) -> Segment | None:
        """The loaded segment that covers a virtual address."""
        index = bisect_right(self._load_addresses, address) - 1
        if index >= 0 and address < self._loads[index].memory_end:
            return self._loads[index]
        return None

    def offset_of(self, address: int) -> int | None:
        """Where the byte at a virtual address stands in the file; None where it is not in the file."""
        start, end, shift = self._near
        if start <= address < end:
            return address + shift
        segment = self.load_at(address)
        if segment is None or address - segment.address >= segment.file_size:
            return None
        shift = segment.offset - segment.address
        self._near = (segment.address, segment.address + segment.file_size, shift)
        return address + shift

    def address_of(self, offset: int) -> int | None:
        """The virtual address of a file offset; None where it is not loaded."""
        for segment in self._loads:
            if segment.offset <= offset < segment.file_end:
                return offset - segment.offset + segment.address
        return None

    def pointer_at(self, address: int) -> int | None:
        """The 8 bytes at a virtual address as they are in the file, before relocation."""
        offset = self.offset_of(address)
        if offset is None or self.offset_of(address + 7) != offset + 7:
            return None
        return int.from_bytes(self.source.read(offset, 8), "little")

    # -- dynamic table and relocations --------

    @cached_property
    def dynamic(self) -> tuple[DynamicEntry, ...]:
        """The dynamic table up to and without its NULL; empty for an object file."""
        segment = next((s for s in self.segments if s.type == SegmentType.DYNAMIC), None)
        if segment is None:
            return ()
        data = self.source.read(segment.offset, segment.file_size - segment.file_size % DYNAMIC_ENTRY.size)
        entries = []
        for position, (tag, value) in enumerate(DYNAMIC_ENTRY.iter_unpack(data)):
            if tag == DynamicTag.NULL:
                break
            entries.append(DynamicEntry(segment.offset + position * DYNAMIC_ENTRY.size, tag, value))
        return tuple(entries)

    def dynamic_value(self, tag: int) -> int | None:
        """The value of the first entry with that tag."""
        return next((entry.value for entry in self.dynamic if entry.tag == tag), None)

    @cached_property
    def rela(self) -> RelaTable:
        """The RELA relocations that DT_RELA names (not those of the PLT, which are never RELATIVE)."""
        offset, size = self._dynamic_table(DynamicTag.RELA, DynamicTag.RELASZ, DynamicTag.RELAENT, RELA.size)
        return RelaTable(self.source.read(offset, size), offset, self.machine.relative)

    @cached_property
    def relr(self) -> array[int]:
        """The addresses that DT_RELR names: pointers that are relative and hold their addend in place."""
        offset, size = self._dynamic_table(DynamicTag.RELR, DynamicTag.RELRSZ, DynamicTag.RELRENT, 8)
        words = array("Q")
        words.frombytes(self.source.read(offset, size))
        places = array("Q")
        place, room = 0, sum(segment.file_size for segment in self._loads)
        for word in words:
            if word & 1 == 0:
                places.append(word)
                place = word + 8
                continue
            bits, at = word >> 1, place
            while bits:
                if bits & 1:
                    places.append(at & 0xFFFF_FFFF_FFFF_FFFF)
                bits >>= 1
                at += 8
            place += 63 * 8
            if len(places) * 8 > room:
                raise BadInputError("There are more relative relocations than the file has room for.")
        return places

    def relocations_in(self, start: int, end: int) -> dict[int, Relocation]:
        """The relative relocations whose pointers lie in an address range, by the address of the pointer."""
        table = self.rela
        indices = filter(table.is_relative, table.placed_in(start, end))
        found = {relocation.place: relocation for relocation in table.relocations(indices)}
        for place in self.relr:
            if start <= place < end:
                found[place] = self._relr_relocation(place)
        return found

    def relocations_into(self, start: int, end: int) -> Iterator[Relocation]:
        """The relative relocations whose targets lie in an address range."""
        table = self.rela
        yield from table.relocations(table.pointing_into(start, end))
        for place in self.relr:
            relocation = self._relr_relocation(place)
            if start <= relocation.addend < end:
                yield relocation

    def pointers_into(self, start: int, end: int) -> dict[int, int]:
        """Where the relative relocations lead whose targets lie in an address range, by the address of the pointer."""
        places, addends = self.rela.places, self.rela.addends
        found = {places[index]: addends[index] for index in self.rela.pointing_into(start, end)}
        for place in self.relr:
            addend = self._relr_relocation(place).addend
            if start <= addend < end:
                found[place] = addend
        return found

    def relocations_to(self, targets: Collection[int]) -> Iterator[Relocation]:
        """The relative relocations that lead to one of the addresses."""
        table = self.rela
        yield from table.relocations(table.pointing_to(targets))
        for place in self.relr:
            relocation = self._relr_relocation(place)
            if relocation.addend in targets:
                yield relocation

    def _relr_relocation(self, place: int) -> Relocation:
        addend = self.pointer_at(place)
        if addend is None:
            raise BadInputError(f"A relative relocation is at {place:#x}, which is not in the file.")
        return Relocation(None, place, addend)

    def _dynamic_table(self, where: int, size: int, entry: int, expected: int) -> tuple[int, int]:
        """File offset and size of a table the dynamic section describes; (0, 0) where there is none."""
        address, length = self.dynamic_value(where), self.dynamic_value(size)
        if address is None or not length:
            return 0, 0
        if self.dynamic_value(entry) not in (None, expected) or length % expected:
            raise BadInputError(f"Relocation entries are not {expected} bytes long.")
        offset = self.offset_of(address)
        if offset is None or self.offset_of(address + length - 1) != offset + length - 1:
            raise BadInputError(f"The relocations at {address:#x} are not in the file.")
        return offset, length

    # -- headers --------

    def _first_section(self) -> tuple[int, ...]:
        """Section header 0, which holds the numbers that do not fit the file header."""
        return SECTION_HEADER.unpack(self.source.read(self.header.section_table_offset, SECTION_HEADER.size))

    def _read_segments(self) -> tuple[Segment, ...]:
        count = self.header.segment_count
        if count == _EXTENDED and self.header.section_table_offset:
            count = self._first_section()[7]
        if count == 0:
            return ()
        data = self.source.read(self.header.segment_table_offset, count * PROGRAM_HEADER.size)
        segments = []
        for index, fields in enumerate(PROGRAM_HEADER.iter_unpack(data)):
            segment = Segment(index, *fields)
            if segment.file_end > self.size:
                raise BadInputError(f"Program header {index} reaches past the end of the file.")
            if segment.type == SegmentType.LOAD and segment.memory_size < segment.file_size:
                raise BadInputError(f"Program header {index} has more bytes in the file than in memory.")
            if segment.memory_end > 1 << 64:
                raise BadInputError(f"Program header {index} is outside the address space.")
            segments.append(segment)
        return tuple(segments)

    def _read_sections(self) -> tuple[Section, ...]:
        if self.header.section_table_offset == 0:
            return ()
        first = self._first_section()
        count = self.header.section_count or first[5]
        if count > _MAX_SECTIONS:
            raise BadInputError(f"The file says it has {count} sections, which no real library has.")
        data = self.source.read(self.header.section_table_offset, count * SECTION_HEADER.size)
        raw = list(SECTION_HEADER.iter_unpack(data))
        names_index = self.header.name_section
        if names_index == _EXTENDED:
            names_index = first[6]
            self.header = replace(self.header, name_section=names_index)
        names = self._names(raw, names_index)
        sections = []
        for index, (name, *fields) in enumerate(raw):
            section = Section(index, _name(names, name, index), name, *fields)
            if section.in_file and section.file_end > self.size:
                raise BadInputError(f"Section {section.name or index} reaches past the end of the file.")
            if section.memory_end > 1 << 64:
                raise BadInputError(f"Section {section.name or index} is outside the address space.")
            sections.append(section)
        return tuple(sections)

    def _names(self, raw: list[tuple[int, ...]], index: int) -> bytes:
        if index == 0:
            return b""
        if index >= len(raw) or raw[index][1] != SectionType.STRTAB:
            raise BadInputError("The table of section names is missing or is not a table of names.")
        return bytes(self.source.read(raw[index][4], raw[index][5]))


def _read_header(source: ByteSource) -> Header:
    if source.size < len(MAGIC) or bytes(source.read(0, len(MAGIC))) != MAGIC:
        raise NotElfError("The file is not an ELF file.", "Give a Linux shared library (.so).")
    ident, kind, machine, version, entry, phoff, shoff, flags, *sizes = HEADER.unpack(source.read(0, HEADER.size))
    ehsize, phentsize, phnum, shentsize, shnum, names = sizes
    if ident[4] != 2:
        raise UnsupportedElfError("The ELF file is not 64-bit.", "Only 64-bit libraries are supported.")
    if ident[5] != 1:
        raise UnsupportedElfError("The ELF file is big-endian.", "Only little-endian libraries are supported.")
    if ident[6] != 1 or version != 1:
        raise BadInputError("The ELF file has an unknown version.")
    if machine not in ElfMachine._value2member_map_:
        raise UnsupportedElfError(
            f"The ELF file is for machine number {machine}.", "Only x86_64 and aarch64 libraries are supported."
        )
    if kind not in FileType._value2member_map_:
        raise BadInputError(f"The ELF file has type {kind}; it is not a library, program or object file.")
    if ehsize != HEADER.size:
        raise BadInputError(f"The ELF file header says it is {ehsize} bytes long, not {HEADER.size}.")
    if phnum and phentsize != PROGRAM_HEADER.size:
        raise BadInputError(f"Program headers are {phentsize} bytes long.")
    if shoff and shentsize != SECTION_HEADER.size:
        raise BadInputError(f"Section headers are {shentsize} bytes long.")
    return Header(ElfMachine(machine), FileType(kind), entry, phoff, shoff, flags, phnum, shnum, names)


def _name(names: bytes, offset: int, index: int) -> str:
    if not names:
        return ""
    end = names.find(b"\0", offset)
    if offset >= len(names) or end < 0:
        raise BadInputError(f"The name of section {index} is outside the table of names.")
    return names[offset:end].decode("utf-8", "backslashreplace")


def _check_loads(loads: list[Segment]) -> None:
    """Loaded segments must not claim the same addresses."""
    for before, after in pairwise(loads):
        if before.memory_end > after.address:
            raise BadInputError(f"Program headers {before.index} and {after.index} overlap in memory.")


def _check_sections(sections: tuple[Section, ...]) -> None:
    """Sections must not claim the same bytes of the file."""
    filled = sorted((s for s in sections if s.in_file), key=lambda section: section.offset)
    for before, after in pairwise(filled):
        if before.file_end > after.offset:
            raise BadInputError(f"Sections {before.name} and {after.name} overlap in the file.")
