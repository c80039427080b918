"""Relative relocations as a bitmap of their places (DT_RELR): 24 bytes each become a fraction of one.

The addend of each moves into the word that is relocated, so the words change and nothing else that is loaded does. The
table, and what names the version that glibc demands for it, go to a segment of their own behind all others: dynamic
strings with one more, the version needs with one more, the bitmap, and the program headers, which have grown. What they
leave becomes holes. Nothing but dynamic entries leads to any of it; where something else does, or the dynamic section
has no room for three entries, a library stays as it is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    DYNAMIC_ENTRY,
    HEADER,
    PROGRAM_HEADER,
    RELA,
    SYMBOL,
    DynamicTag,
    FileType,
    Section,
    SectionFlag,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.core.disk import staging_folder, write_at
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.files import FileSource, copy_range, copy_sparse, write_patches
from torchtailor.surgery.headers import (
    SPARE_HEADERS,
    TABLE_MARK,
    TABLE_SECTION,
    SectionLayout,
    SectionPlan,
    TableHome,
    find_home,
    header_row,
    mark_row,
    program_headers,
)
from torchtailor.surgery.layout import (
    MAX_HOLES,
    AddressMap,
    SegmentPiece,
    Span,
    align_up,
    choose_holes,
    merge,
    page_size,
    place,
    split,
    subtract,
)
from torchtailor.surgery.proof.relr import prove_relr

RELR_SECTION = ".relr.dyn"
VERSION = b"GLIBC_ABI_DT_RELR"  # of libc.so.6, from glibc 2.36 on; the loader refuses the table without it
LIBC = b"libc.so.6"

_FEW = "fewer relative relocations than are worth it: packing them would save less than 64 KiB"
_UNUSUAL = "tables that are laid out in another way than linkers do, so relocations are not packed"
_WORTH = 64 << 10  # bytes; for less no library is changed
_WORD = 8
_BITS = 63  # of a word of the table
_WRITABLE = 2  # of the flags of a segment
_READABLE = 4
_NEED = Struct("<HHIII")  # version, count, file, aux, next
_AUX = Struct("<IHHII")  # hash, flags, other, name, next
_SECTION_SYMBOL = 3  # the type of a symbol
_SYMBOL_VALUE = 8  # the byte of a symbol at which its value is
_HIDDEN = 0x8000  # of the number of a version
_TAGS = (DynamicTag.RELA, DynamicTag.RELASZ, DynamicTag.STRTAB, DynamicTag.STRSZ, DynamicTag.VERNEED)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The sections that the dynamic section names, and that are replaced."""

    relocations: Section
    strings: Section
    needs: Section


@dataclass(frozen=True, slots=True)
class _Contents:
    """What replaces them."""

    strings: bytes
    needs: bytes
    bitmap: bytes
    rest: bytes  # relocations that stay as they are
    leading: int  # how many of those are relative and come first


class RelrGain(NamedTuple):
    """What packing the relocations of a library saves, and why it stays as it is where that is nothing."""

    saved: int
    reason: str = ""


class _NotPackedError(Exception):
    """Why a library stays as it is."""


def with_relr(fd: int, folder: Path) -> RelrGain:
    """Store the relative relocations of the library in an open file as a bitmap. `folder` is on the disk of the
    file."""
    source = FileSource(fd)
    before = ElfFile(source)
    try:
        packing = _Packing.of(before)
    except _NotPackedError as reason:
        return RelrGain(0, str(reason))
    with staging_folder(folder) as scratch, (scratch / "packed").open("xb+") as file:
        packing.write(source, file.fileno())
        output = FileSource(file.fileno())
        if output.size >= source.size:
            return RelrGain(0, _FEW)
        prove_relr(before, ElfFile(output))
        copy_sparse(output, fd)
        return RelrGain(source.size - output.size)


def encoded(places: Sequence[int]) -> array[int]:
    """The words of a DT_RELR table for addresses in their order, all of them multiples of 8.

    An even word is an address; an odd one a bitmap of the 63 words behind the last that was named.
    """
    words = array("Q")
    index, count = 0, len(places)
    while index < count:
        words.append(places[index])
        base = places[index] + _WORD
        index += 1
        while True:
            bits = 0
            while index < count and places[index] - base < _BITS * _WORD:
                bits |= 1 << (places[index] - base) // _WORD
                index += 1
            if not bits:
                break
            words.append(bits << 1 | 1)
            base += _BITS * _WORD
    return words


@dataclass(frozen=True)
class _Packing:
    """Everything that is known about the output before a byte of it is written."""

    elf: ElfFile
    tables: _Tables
    contents: _Contents
    words: dict[int, int]  # the addends that move into their words, by address
    holes: tuple[Span, ...]
    pieces: tuple[SegmentPiece, ...]  # the last is new
    home: TableHome
    strings_at: int
    needs_at: int
    bitmap_at: int

    @classmethod
    def of(cls, elf: ElfFile) -> _Packing:
        """The packing of a library, or _NotPackedError where that is not possible or not worth it."""
        tables = _tables(elf)
        if _room(elf) < 0:
            raise _NotPackedError(_UNUSUAL)
        chosen = _chosen(elf)
        contents = _contents(elf, tables, chosen)
        if len(chosen) * RELA.size - len(contents.bitmap) < _WORTH:
            raise _NotPackedError(_FEW)
        page = page_size(elf.machine, elf.loads)
        holes = tuple(choose_holes(_removable(elf, _free(elf, tables, contents)), page)[:MAX_HOLES])
        pieces = place(piece for load in elf.loads for piece in split(load, holes, page, first=load is elf.loads[0]))
        count = len(elf.segments) - len(elf.loads) + len(pieces) + 1
        offset = align_up(pieces[-1].offset + pieces[-1].file_size, _WORD)
        # an address that is congruent to the offset, so that there is no padding in the file
        start = align_up(elf.loads[-1].memory_end, page) + offset % page
        home = find_home(elf, count, (), page)
        if home.room < count * PROGRAM_HEADER.size:
            if not _follows_sections(elf):
                raise _NotPackedError(_UNUSUAL)
            home = TableHome(start, (count + SPARE_HEADERS) * PROGRAM_HEADER.size, True, holes)
        strings_at = align_up(home.end, _WORD) if home.moved else start
        needs_at = align_up(strings_at + len(contents.strings), _WORD)
        bitmap_at = align_up(needs_at + len(contents.needs), _WORD)
        size = bitmap_at + len(contents.bitmap) - start
        segment = Segment(len(elf.segments), SegmentType.LOAD, _READABLE, offset, start, start, size, size, page)
        pieces.append(SegmentPiece(segment, start, size, size, page, offset))
        addends = dict(zip(elf.rela.places, elf.rela.addends, strict=True))
        words = {at: addends[at] % 2**64 for at in chosen}
        return cls(elf, tables, contents, words, holes, tuple(pieces), home, strings_at, needs_at, bitmap_at)

    @property
    def moved(self) -> dict[int, int]:
        """The new addresses of sections, by their number."""
        kept = len(self.contents.rest)
        return {
            self.tables.relocations.index: self.tables.relocations.memory_end - kept,
            self.tables.strings.index: self.strings_at,
            self.tables.needs.index: self.needs_at,
        }

    def write(self, source: FileSource, fd: int) -> None:
        """Write the output to an empty file; what is not written is zero."""
        addresses = AddressMap(self.pieces)
        free = _free(self.elf, self.tables, self.contents)
        for piece in self.pieces[:-1]:
            for span in subtract([Span(piece.address, piece.end)], free):
                shift = span.start - piece.address
                copy_range(source, piece.old_offset + shift, fd, piece.offset + shift, span.size)
        grown = copy(self.elf)
        grown.segments = (*self.elf.segments, self.pieces[-1].segment)
        table = program_headers(grown, self.pieces, addresses, self.home)
        sections = _sections(self, addresses)
        values = list(_section_symbols(self.elf, self.moved))
        for old, new, size in sections.unloaded:
            copy_range(source, old, fd, new, size)
            write_patches(fd, ((at - old + new, data) for at, data in values if old <= at < old + size))
        write_at(fd, *sections.names)
        write_at(fd, sections.table.offset, sections.table.data)
        write_patches(fd, self._patches(addresses))
        write_at(fd, table.offset, table.data)
        if self.home.moved:
            write_at(fd, table.offset + self.home.room, TABLE_MARK)
        fields = list(HEADER.unpack(self.elf.read(0, HEADER.size)))
        fields[5:7] = [table.offset, sections.table.offset]
        fields[10] = table.count
        fields[12] = sections.table.count
        write_at(fd, 0, HEADER.pack(*fields))

    def _patches(self, addresses: AddressMap) -> Iterator[tuple[int, bytes]]:
        def at(address: int) -> int:
            offset = addresses.offset(address)
            if offset is None:
                raise AssertionError(f"{address:#x} is in a hole")
            return offset

        yield at(self.strings_at), self.contents.strings
        yield at(self.needs_at), self.contents.needs
        yield at(self.bitmap_at), self.contents.bitmap
        if self.contents.rest:
            yield at(self.tables.relocations.memory_end - len(self.contents.rest)), self.contents.rest
        for word, addend in self.words.items():
            yield at(word), addend.to_bytes(_WORD, "little")
        segment = next(s for s in self.elf.segments if s.type == SegmentType.DYNAMIC)
        entries = b"".join(DYNAMIC_ENTRY.pack(*entry) for entry in self._dynamic())
        yield at(segment.address), entries.ljust(segment.file_size, b"\0")

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        new = {
            DynamicTag.RELA: self.moved[self.tables.relocations.index],
            DynamicTag.RELASZ: len(self.contents.rest),
            DynamicTag.STRTAB: self.strings_at,
            DynamicTag.STRSZ: len(self.contents.strings),
            DynamicTag.VERNEED: self.needs_at,
            DynamicTag.RELACOUNT: self.contents.leading,
        }
        for entry in self.elf.dynamic:
            if entry.tag != DynamicTag.RELACOUNT or self.contents.leading:
                yield entry.tag, new.get(DynamicTag(entry.tag), entry.value) if entry.tag in new else entry.value
        yield DynamicTag.RELR, self.bitmap_at
        yield DynamicTag.RELRSZ, len(self.contents.bitmap)
        yield DynamicTag.RELRENT, _WORD


def _follows_sections(elf: ElfFile) -> bool:
    """Whether a table behind the last segment would begin where its last section ends, where `strip` looks for it."""
    last = elf.loads[-1]
    ends = [s.file_end for s in elf.sections if s.allocated and s.in_file and elf.load_at(s.address) is last]
    return not ends or max(ends) % _WORD == 0


def _tables(elf: ElfFile) -> _Tables:
    """The three sections, where the file is a library whose loader would read DT_RELR, and has them as linkers do."""
    program = any(segment.type == SegmentType.INTERP for segment in elf.segments)
    if elf.header.type is not FileType.SHARED or program:
        raise _NotPackedError("a program, of which no relocations are packed")
    if elf.dynamic_value(DynamicTag.RELR) is not None:
        raise _NotPackedError("relocations are packed already")
    if len(elf.rela) * RELA.size < _WORTH:
        raise _NotPackedError(_FEW)
    values = [elf.dynamic_value(tag) for tag in _TAGS]
    if None in values or sum(entry.tag in _TAGS for entry in elf.dynamic) != len(_TAGS):
        raise _NotPackedError(_UNUSUAL)
    places, size, strings, strings_size, needs = values
    by_address = {s.address: s for s in elf.sections if s.allocated and s.in_file and elf.offset_of(s.address)}
    found = [by_address.get(at or 0) for at in (places, strings, needs)]
    kinds = (SectionType.RELA, SectionType.STRTAB, SectionType.VERNEED)
    if any(section is None or section.type != kind for section, kind in zip(found, kinds, strict=True)):
        raise _NotPackedError(_UNUSUAL)
    tables = _Tables(*(section for section in found if section is not None))
    whole = (tables.relocations.size, tables.strings.size) == (size, strings_size)
    spans = [Span(section.address, section.memory_end) for section in found if section is not None]
    if not whole or any(_is_target(elf, span) for span in spans):
        raise _NotPackedError(_UNUSUAL)
    return tables


def _is_target(elf: ElfFile, span: Span) -> bool:
    """Whether anything but its own dynamic entry leads into a section."""
    small = (s for s in elf.segments if s.type != SegmentType.LOAD and s.memory_size)
    if any(s.address < span.end and span.start < s.memory_end for s in small):
        return True
    symbols = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    content = elf.content(symbols) if symbols else b""
    rows = SYMBOL.iter_unpack(content[: len(content) - len(content) % SYMBOL.size])
    if any(index and span.start <= value < span.end for _, _, _, index, value, _ in rows):
        return True
    return bool(elf.pointers_into(span.start, span.end))


def _room(elf: ElfFile) -> int:
    """Entries that the dynamic section has to spare for those of DT_RELR and the last, which is empty."""
    segment = next((s for s in elf.segments if s.type == SegmentType.DYNAMIC), None)
    if segment is None:
        return -1
    counted = any(entry.tag == DynamicTag.RELACOUNT for entry in elf.dynamic)
    return segment.file_size // DYNAMIC_ENTRY.size - (len(elf.dynamic) + 3 - counted + 1)


def _chosen(elf: ElfFile) -> list[int]:
    """The places of relative relocations that a bitmap can hold: whole words that can be written, and that no other
    relocation touches."""
    table = elf.rela
    everywhere = sorted([*table.places, *_plt_places(elf)])
    chosen = []
    for index, at in enumerate(table.places):
        if table.is_relative(index) and not at % _WORD:
            first = bisect_left(everywhere, at - _WORD + 1)
            if everywhere[first] == at and (first + 1 == len(everywhere) or everywhere[first + 1] >= at + _WORD):
                chosen.append(at)
    return [at for at in sorted(chosen) if _writable_word(elf, at)]


def _writable_word(elf: ElfFile, at: int) -> bool:
    load = elf.load_at(at)
    return load is not None and bool(load.flags & _WRITABLE) and at + _WORD <= load.address + load.file_size


def _plt_places(elf: ElfFile) -> Iterator[int]:
    at, size = elf.dynamic_value(DynamicTag.JMPREL), elf.dynamic_value(DynamicTag.PLTRELSZ)
    offset = elf.offset_of(at) if at is not None else None
    if offset is not None and size:
        yield from (row[0] for row in RELA.iter_unpack(elf.read(offset, size - size % RELA.size)))


def _contents(elf: ElfFile, tables: _Tables, places: Sequence[int]) -> _Contents:
    old = bytes(elf.content(tables.strings))
    needs = _with_version(bytes(elf.content(tables.needs)), old, _first_free_version(elf))
    if needs is None:
        raise _NotPackedError(_UNUSUAL)
    chosen = frozenset(places)
    table = elf.rela
    rows = bytes(elf.content(tables.relocations))
    kept = [index for index, at in enumerate(table.places) if at not in chosen]
    leading = next((n for n, index in enumerate(kept) if not table.is_relative(index)), len(kept))
    rest = b"".join(rows[index * RELA.size : (index + 1) * RELA.size] for index in kept)
    return _Contents(old + VERSION + b"\0", needs, encoded(places).tobytes(), rest, leading)


def _first_free_version(elf: ElfFile) -> int:
    """A number that no version of the library has: those of its own, those it needs, and what symbols say."""
    highest = 1
    for section in elf.sections:
        if section.type == SectionType.VERSYM:
            numbers = array("H")
            numbers.frombytes(bytes(elf.content(section)[: section.size - section.size % 2]))
            highest = max([highest, *(number & ~_HIDDEN for number in numbers)])
    own = elf.dynamic_value(DynamicTag.VERDEFNUM) or 0
    needs = next((s for s in elf.sections if s.type == SectionType.VERNEED), None)
    others = [
        aux[2] & ~_HIDDEN for _, auxes in read_needs(bytes(elf.content(needs)) if needs else b"") for aux in auxes
    ]
    return max([highest, own, *others]) + 1


def read_needs(data: bytes) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """The libraries that versions are needed of, each with its versions, as records without what links them."""
    found: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = []
    at = 0
    while data:
        if at + _NEED.size > len(data):
            raise BadInputError("The versions that it needs are cut short.")
        version, count, file, aux, following = _NEED.unpack_from(data, at)
        auxes: list[tuple[int, ...]] = []
        where = at + aux
        for left in range(count, 0, -1):
            if where + _AUX.size > len(data):
                raise BadInputError("The versions that it needs are cut short.")
            *fields, step = _AUX.unpack_from(data, where)
            auxes.append(tuple(fields))
            if left > 1 and step < _AUX.size:
                raise BadInputError("The versions that it needs lie over each other.")
            where += step
        found.append(((version, file), auxes))
        if not following:
            break
        if following < _NEED.size:
            raise BadInputError("The versions that it needs lie over each other.")
        at += following
    return found


def _with_version(needs: bytes, strings: bytes, number: int) -> bytes | None:
    """The version needs with one more of libc's, whose name is appended to the strings; None where libc has none."""
    known = read_needs(needs)
    libc = [index for index, ((_, file), _) in enumerate(known) if _text(strings, file) == LIBC]
    if len(libc) != 1 or number >= _HIDDEN:
        return None
    known[libc[0]][1].append((_elf_hash(VERSION), 0, number, len(strings)))
    data = b""
    for index, ((version, file), auxes) in enumerate(known):
        size = _NEED.size + len(auxes) * _AUX.size
        data += _NEED.pack(version, len(auxes), file, _NEED.size, size if index + 1 < len(known) else 0)
        for last, aux in enumerate(auxes, 1):
            data += _AUX.pack(*aux, _AUX.size if last < len(auxes) else 0)
    return data


def _text(strings: bytes, at: int) -> bytes:
    return strings[at : strings.find(b"\0", at)]


def _elf_hash(name: bytes) -> int:
    value = 0
    for letter in name:
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _free(elf: ElfFile, tables: _Tables, contents: _Contents) -> list[Span]:
    """The addresses that the tables leave."""
    relocations = tables.relocations
    spans = [Span(relocations.address, relocations.memory_end - len(contents.rest))]
    spans += [Span(section.address, section.memory_end) for section in (tables.strings, tables.needs)]
    return merge([*spans, *_padding(elf, tables.strings)])


def _padding(elf: ElfFile, strings: Section) -> Iterator[Span]:
    """Zeros behind the strings, where these end a segment: they would be one of their own, without a section."""
    load = elf.load_at(strings.address)
    end = load.address + load.file_size if load else 0
    size = end - strings.memory_end
    if 0 < size < _WORD and not any(elf.read(strings.file_end, size)):
        yield Span(strings.memory_end, end)


def _removable(elf: ElfFile, free: Sequence[Span]) -> Iterator[Span]:
    """Those of the free addresses that can leave the file: not a whole segment, nor the bytes before zeroed memory."""
    for span in free:
        load = elf.load_at(span.start)
        if load is None:
            continue
        file_end = load.address + load.file_size
        whole = span.start <= load.address and span.end >= file_end
        zeros_behind = span.end == file_end and load.memory_size > load.file_size
        if span.end <= file_end and not whole and not zeros_behind:
            yield span


def _sections(packing: _Packing, addresses: AddressMap) -> SectionPlan:
    """The new section headers, and what follows behind the loaded bytes."""
    elf, tables = packing.elf, packing.tables
    names = bytes(elf.content(elf.sections[elf.header.name_section])) or b"\0"
    names, relr_name = names + RELR_SECTION.encode() + b"\0", len(names)
    names, table_name = names + TABLE_SECTION.encode() + b"\0", len(names)
    moved = packing.moved
    sizes = {tables.relocations.index: len(packing.contents.rest), tables.strings.index: len(packing.contents.strings)}
    sizes[tables.needs.index] = len(packing.contents.needs)
    layout = SectionLayout(addresses, packing.pieces[-1].offset + packing.pieces[-1].file_size)
    rows: list[list[int]] = []
    for section in elf.sections:
        row = header_row(section)
        if section.index in moved:
            row[3], row[5] = moved[section.index], sizes[section.index]
        if section.index == elf.header.name_section:
            pass  # goes last, with the new names in it
        elif section.allocated and (offset := addresses.offset(row[3])) is not None:
            row[4] = offset
        else:
            row[4] = layout.place(section)
        rows.append(row)
    where = [packing.bitmap_at, addresses.empty_offset(packing.bitmap_at), len(packing.contents.bitmap)]
    rows.append([relr_name, SectionType.RELR, SectionFlag.ALLOC, *where, 0, 0, _WORD, _WORD])
    if packing.home.moved:
        rows.append(mark_row(packing.home, table_name, addresses))
    return layout.finish(rows, elf.header.name_section, names)


def _section_symbols(elf: ElfFile, moved: Mapping[int, int]) -> Iterator[tuple[int, bytes]]:
    """(offset in its table, value) of symbols that stand for a section that has moved; only some linkers write them,
    and only to the table that `strip` removes."""
    for table in elf.sections:
        if table.type != SectionType.SYMTAB or not table.in_file:
            continue
        content = elf.content(table)
        whole = content[: len(content) - len(content) % SYMBOL.size]
        for number, (_, info, _, index, _, _) in enumerate(SYMBOL.iter_unpack(whole)):
            if info & 0xF == _SECTION_SYMBOL and index in moved:
                yield table.offset + number * SYMBOL.size + _SYMBOL_VALUE, moved[index].to_bytes(8, "little")
