"""Proof of packed relocations: the loader makes the same memory of the output as of the input.

Both files are read from their dynamic sections on, by code that the packing does not use: which words become "load
address plus value", with which value; which other relocations there are, in their order; and every other loaded byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from struct import Struct, iter_unpack

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    HEADER,
    PROGRAM_HEADER,
    SYMBOL,
    DynamicTag,
    Section,
    SectionFlag,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import CHUNK, same_bytes
from torchtailor.surgery.layout import Span, merge, subtract

_WORD = 8
_VERSION = b"GLIBC_ABI_DT_RELR"
_VERSION_HASH = 0xFD0E42
_LIBC = b"libc.so.6"
_CHANGED = (DynamicTag.RELA, DynamicTag.RELASZ, DynamicTag.STRTAB, DynamicTag.STRSZ, DynamicTag.VERNEED)
_NEW = (DynamicTag.RELR, DynamicTag.RELRSZ, DynamicTag.RELRENT)
_NEED = Struct("<HHIII")
_AUX = Struct("<IHHII")
_READABLE = 4
_SECTION_SYMBOL = 3  # the type of a symbol
_FILLINGS = (b"\0", b"Z", b"X")  # patchelf fills what it moved away with one of the letters
_OWN_SECTIONS = (".relr.dyn", ".torchtailor")
_FIELDS_THAT_CHANGE = (5, 6, 10, 12)  # of the file header: where the two tables are, and how long


def prove_relr(before: ElfFile, after: ElfFile) -> None:
    """Raise CheckFailedError unless the output is the input with its relative relocations packed."""
    if after.source.size >= before.source.size:
        raise CheckFailedError("Packed relocations make the library no smaller.")
    _check_header(before, after)
    _check_dynamic(before, after)
    words = _check_relocations(before, after)
    _check_strings(before, after)
    new = _check_segments(before, after)
    _check_bytes(before, after, words)
    _check_sections(before, after, new)


def _fail(what: str) -> CheckFailedError:
    return CheckFailedError(f"Relocations cannot be packed: {what}.", "Report it, and leave out --relr meanwhile.")


def _check_header(before: ElfFile, after: ElfFile) -> None:
    old, new = (HEADER.unpack(elf.read(0, HEADER.size)) for elf in (before, after))
    if any(a != b for index, (a, b) in enumerate(zip(old, new, strict=True)) if index not in _FIELDS_THAT_CHANGE):
        raise _fail("the file header is another")


def _check_dynamic(before: ElfFile, after: ElfFile) -> None:
    old = [(e.tag, e.value) for e in before.dynamic if e.tag not in _CHANGED and e.tag != DynamicTag.RELACOUNT]
    known = (*_CHANGED, *_NEW, DynamicTag.RELACOUNT)
    new = [(e.tag, e.value) for e in after.dynamic if e.tag not in known]
    tags = [entry.tag for entry in after.dynamic]
    if old != new or any(tags.count(tag) != 1 for tag in (*_CHANGED, *_NEW)):
        raise _fail("the dynamic section has other entries")
    segment = next(s for s in after.segments if s.type == SegmentType.DYNAMIC)
    used = len(after.dynamic) * 16
    if used >= segment.file_size or any(after.read(segment.offset + used, segment.file_size - used)):
        raise _fail("the dynamic section has no end")


def _rows(elf: ElfFile) -> list[tuple[int, int, int]]:
    """(place, type and symbol, addend) of the DT_RELA table."""
    data = _table(elf, DynamicTag.RELA, DynamicTag.RELASZ)
    return list(iter_unpack("<QQQ", data))


def _table(elf: ElfFile, where: DynamicTag, length: DynamicTag) -> bytes:
    address, size = elf.dynamic_value(where), elf.dynamic_value(length)
    if address is None or size is None:
        raise _fail("a table is missing")
    if not size:
        return b""
    offset = elf.offset_of(address)
    if offset is None or elf.offset_of(address + size - 1) != offset + size - 1:
        raise _fail("a table is not loaded")
    return bytes(elf.read(offset, size))


def _bitmap(elf: ElfFile) -> Iterator[int]:
    """The addresses that DT_RELR names, as the loader goes through it."""
    if elf.dynamic_value(DynamicTag.RELRENT) != _WORD:
        raise _fail("the words of the table have another length")
    where = 0
    for (word,) in iter_unpack("<Q", _table(elf, DynamicTag.RELR, DynamicTag.RELRSZ)):
        if not word & 1:
            yield word
            where = word + _WORD
            continue
        for bit in range(1, 64):
            if word >> bit & 1:
                yield where + (bit - 1) * _WORD
        where += 63 * _WORD


def _check_relocations(before: ElfFile, after: ElfFile) -> dict[int, int]:
    """Same relocations; returns the words that hold their value now."""
    kind = before.machine.relative
    old, new = _rows(before), _rows(after)
    if [row for row in old if row[1] != kind] != [row for row in new if row[1] != kind]:
        raise _fail("a relocation that names a symbol is missing or another")
    packed: dict[int, int] = {}
    for place in _bitmap(after):
        value, load = after.pointer_at(place), after.load_at(place)
        if place in packed or value is None or load is None or not load.flags & 2:
            raise _fail(f"the word at {place:#x} cannot be relocated")
        packed[place] = value
    left = [(place, addend) for place, info, addend in new if info == kind]
    if sorted([*packed.items(), *left]) != sorted((place, addend) for place, info, addend in old if info == kind):
        raise _fail("the relative relocations are not the same")
    others = sorted(place for place, *_ in (*new, *_plt(after)))
    for one in others:
        if any(at in packed for at in range(one - _WORD + 1, one + _WORD)):
            raise _fail(f"two relocations touch the word at {one:#x}")
    counted = after.dynamic_value(DynamicTag.RELACOUNT) or 0
    if any(row[1] != kind for row in new[:counted]) or counted > len(new):
        raise _fail("the number of relative relocations is wrong")
    return packed


def _plt(elf: ElfFile) -> list[tuple[int, int, int]]:
    if elf.dynamic_value(DynamicTag.JMPREL) is None:
        return []
    return list(iter_unpack("<QQQ", _table(elf, DynamicTag.JMPREL, DynamicTag.PLTRELSZ)))


def _check_strings(before: ElfFile, after: ElfFile) -> None:
    """One string more, and one version more that libc must have."""
    old, new = (_table(elf, DynamicTag.STRTAB, DynamicTag.STRSZ) for elf in (before, after))
    if new != old + _VERSION + b"\0":
        raise _fail("the dynamic strings are others")
    known, needed = (list(_needs(elf, strings)) for elf, strings in ((before, old), (after, new)))
    numbers = [need[3] for need in known]
    added = [need for need in needed if need[1] == _VERSION]
    if [need for need in needed if need[1] != _VERSION] != known or len(added) != 1:
        raise _fail("the versions that it needs are others")
    library, _, fingerprint, number, flags = added[0]
    versions = next((s for s in after.sections if s.type == SectionType.VERSYM), None)
    used = [row[0] & 0x7FFF for row in iter_unpack("<H", bytes(after.content(versions)))] if versions else []
    own = after.dynamic_value(DynamicTag.VERDEFNUM) or 0
    first_free = max([1, own, *(number & 0x7FFF for number in numbers), *used]) + 1
    if (library, fingerprint, flags, number) != (_LIBC, _VERSION_HASH, 0, first_free):
        raise _fail("glibc would not accept it")


def _needs(elf: ElfFile, strings: bytes) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    """(library, version, hash, number, flags) of each version that is needed."""

    def text(at: int) -> bytes:
        end = strings.find(b"\0", at)
        if end < 0:
            raise _fail("a version has no name")
        return strings[at:end]

    at: int | None = elf.dynamic_value(DynamicTag.VERNEED)
    while at is not None:
        offset = elf.offset_of(at)
        if offset is None:
            raise _fail("the versions that it needs are not loaded")
        version, count, file, aux, following = _NEED.unpack(elf.read(offset, _NEED.size))
        where = offset + aux
        for left in range(count - 1, -1, -1):
            fingerprint, flags, number, name, step = _AUX.unpack(elf.read(where, _AUX.size))
            if version != 1 or bool(step) != bool(left):
                raise _fail("the versions that it needs are damaged")
            yield text(file), text(name), fingerprint, number, flags
            where += step
        at = at + following if following else None


def _check_segments(before: ElfFile, after: ElfFile) -> Segment:
    """Each loaded segment is a part of an old one, and one is new, behind all others; returns that."""
    *loads, new = after.loads
    end = max(load.memory_end for load in before.loads)
    page = max(4096, min(load.alignment for load in after.loads))
    plain = new.flags == _READABLE and new.memory_size == new.file_size and new.physical_address == new.address
    if not plain or new.address < -(-end // page) * page:
        raise _fail("its new segment is not behind the others")
    for load in loads:
        _check_part(before, load)
    for load in after.loads:
        if load.alignment < 4096 or (load.address - load.offset) % load.alignment:
            raise _fail(f"the segment at {load.address:#x} is not aligned")
    for one, other in zip(after.loads, after.loads[1:], strict=False):
        if -(-one.memory_end // page) > other.address // page:
            raise _fail(f"two segments share the page at {other.address:#x}")
    if max(load.alignment for load in after.loads) != max(load.alignment for load in before.loads):
        raise _fail("the library as a whole is aligned otherwise")
    if merge(_zeroed(before)) != merge(_zeroed(after)):
        raise _fail("it has other zeroed memory")
    order = [segment.address for segment in after.segments if segment.type == SegmentType.LOAD]
    if order != sorted(order):
        raise _fail("its segments are out of order")
    _check_other_segments(before, after)
    return new


def _check_part(before: ElfFile, load: Segment) -> None:
    """A segment is a part of one of the input's."""
    whole = before.load_at(load.address)
    if whole is None or load.memory_end > whole.memory_end or load.flags & ~whole.flags:
        raise _fail(f"the segment at {load.address:#x} is not one of the input's")
    if load.physical_address != (whole.physical_address + load.address - whole.address) % 2**64:
        raise _fail(f"the segment at {load.address:#x} has another physical address")
    if load.flags != whole.flags and _has_code(before, load):
        raise _fail(f"the code at {load.address:#x} cannot be executed")
    if load.memory_size > load.file_size and (load.memory_end, load.address + load.file_size) != (
        whole.memory_end,
        whole.address + whole.file_size,
    ):
        raise _fail(f"the zeroed memory behind {load.address:#x} begins elsewhere")


def _zeroed(elf: ElfFile) -> list[Span]:
    return [
        Span(load.address + load.file_size, load.memory_end) for load in elf.loads if load.memory_size > load.file_size
    ]


def _has_code(elf: ElfFile, load: Segment) -> bool:
    sections = (s for s in elf.sections if s.allocated and s.flags & SectionFlag.EXECUTE)
    return any(s.address < load.memory_end and load.address < s.memory_end for s in sections)


def _check_other_segments(before: ElfFile, after: ElfFile) -> None:
    def rows(elf: ElfFile) -> list[tuple[int, ...]]:
        skip = (SegmentType.LOAD, SegmentType.PHDR)
        return [
            (s.type, s.flags, s.address, s.physical_address, s.file_size, s.memory_size, s.alignment)
            for s in elf.segments
            if s.type not in skip
        ]

    if rows(before) != rows(after):
        raise _fail("it has other program headers")
    for segment in after.segments:
        loaded = segment.type in (SegmentType.LOAD, SegmentType.PHDR)
        if not loaded and after.offset_of(segment.address) not in (None, segment.offset):
            raise _fail(f"program header {segment.index} has a wrong offset")
    offset = after.header.segment_table_offset
    size = len(after.segments) * PROGRAM_HEADER.size
    address = after.address_of(offset)
    if address is None or after.address_of(offset + size - 1) != address + size - 1:
        raise _fail("its program headers are not loaded")
    for segment in after.segments:
        if segment.type == SegmentType.PHDR and (segment.address, segment.file_size) != (address, size):
            raise _fail("its program headers are somewhere else")


def _check_bytes(before: ElfFile, after: ElfFile, words: Iterable[int]) -> None:
    """Every byte that was loaded is there with its value, but for the tables that were replaced and the words."""
    dynamic = next(s for s in before.segments if s.type == SegmentType.DYNAMIC)
    first = before.loads[0].address
    replaced = [Span(first, first + HEADER.size), Span(dynamic.address, dynamic.address + dynamic.file_size)]
    for where, length in ((DynamicTag.RELA, DynamicTag.RELASZ), (DynamicTag.STRTAB, DynamicTag.STRSZ)):
        address = before.dynamic_value(where) or 0
        replaced.append(Span(address, address + (before.dynamic_value(length) or 0)))
    needs = next(s for s in before.sections if s.address == before.dynamic_value(DynamicTag.VERNEED))
    replaced += [Span(needs.address, needs.memory_end), *_end_of_segment(before), *_table_in_place(before, after)]
    places = sorted(words)
    for load in before.loads:
        for span in subtract([Span(load.address, load.address + load.file_size)], merge(replaced)):
            _compare(before, after, span, places)


def _table_in_place(before: ElfFile, after: ElfFile) -> Iterator[Span]:
    """The program headers, where they grew into bytes that are nobody's."""
    offset = before.header.segment_table_offset
    address = before.address_of(offset)
    if address is None or after.address_of(after.header.segment_table_offset) != address:
        return
    end = address + len(after.segments) * PROGRAM_HEADER.size
    old = len(before.segments) * PROGRAM_HEADER.size
    filling = bytes(before.read(offset + old, end - address - old)) if end - address > old else b""
    owned = any(s.allocated and s.address < end and address < s.memory_end for s in before.sections)
    if owned or not any(not filling.strip(letter) for letter in _FILLINGS):
        raise _fail("its program headers lie over other data")
    yield Span(address, end)


def _end_of_segment(elf: ElfFile) -> Iterator[Span]:
    """A few zeros behind the strings that no section has."""
    start = (elf.dynamic_value(DynamicTag.STRTAB) or 0) + (elf.dynamic_value(DynamicTag.STRSZ) or 0)
    load, offset = elf.load_at(start), elf.offset_of(start)
    if load is None or offset is None:
        return
    end = load.address + load.file_size
    owned = any(s.allocated and s.address < end and start < s.memory_end for s in elf.sections)
    if end - start < _WORD and not owned and not any(elf.read(offset, end - start)):
        yield Span(start, end)


def _compare(before: ElfFile, after: ElfFile, span: Span, places: list[int]) -> None:
    for start in range(span.start, span.end, CHUNK):
        size = min(CHUNK, span.end - start)
        here, there = before.offset_of(start), after.offset_of(start)
        if here is None or there is None or after.offset_of(start + size - 1) != there + size - 1:
            raise _fail(f"loaded bytes at {start:#x} are missing")
        old, new = bytearray(before.read(here, size)), bytearray(after.read(there, size))
        if old == new:
            continue
        for place in places[bisect_left(places, start - _WORD + 1) : bisect_left(places, start + size)]:
            low, high = max(place - start, 0), min(place - start + _WORD, size)
            if low < high:
                old[low:high] = new[low:high] = bytes(high - low)
        if old != new:
            at = next(index for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
            raise _fail(f"the loaded byte at {start + at:#x} is not what it was")


def _check_sections(before: ElfFile, after: ElfFile, segment: Segment) -> None:
    """The same sections in their order, then two new ones; each where its address says."""
    count = len(before.sections)
    moved_table = after.address_of(after.header.segment_table_offset) != before.address_of(
        before.header.segment_table_offset
    )
    own = _OWN_SECTIONS if moved_table else _OWN_SECTIONS[:1]
    if [section.name for section in after.sections[count:]] != list(own):
        raise _fail("it has other sections")
    moved = {_section_at(before, tag) for tag in (DynamicTag.RELA, DynamicTag.STRTAB, DynamicTag.VERNEED)}
    for old, new in zip(before.sections, after.sections, strict=False):
        same = ("name", "type", "flags", "link", "info", "alignment", "entry_size")
        if any(getattr(old, field) != getattr(new, field) for field in same):
            raise _fail(f"section {old.name} is something else")
        if old.index in moved or old.index == before.header.name_section:
            continue
        if (old.address, old.size) != (new.address, new.size):
            raise _fail(f"section {old.name} is somewhere else")
        loaded = old.allocated and before.load_at(old.address) is not None
        if old.type == SectionType.SYMTAB and not loaded:
            _check_symbols(before, after, old, new, moved)
        elif (
            old.in_file and not loaded and not same_bytes(before.source, old.offset, after.source, new.offset, old.size)
        ):
            raise _fail(f"section {old.name} has other bytes")
    for tag, length in ((DynamicTag.RELA, DynamicTag.RELASZ), (DynamicTag.STRTAB, DynamicTag.STRSZ)):
        _check_place(after, before.sections[_section_at(before, tag)].name, tag, length)
    _check_place(after, ".relr.dyn", DynamicTag.RELR, DynamicTag.RELRSZ)
    for section in after.sections:
        place = (after.offset_of(section.address), after.offset_of(section.memory_end - 1))
        loaded = section.allocated and section.in_file and after.load_at(section.address) is not None
        if loaded and place != (section.offset, section.file_end - 1):
            raise _fail(f"section {section.name} is not where its address says")
    if after.sections[-1].memory_end > segment.memory_end or after.sections[-1].address < segment.address:
        raise _fail("its own section is somewhere else")


def _check_symbols(before: ElfFile, after: ElfFile, old: Section, new: Section, moved: Collection[int]) -> None:
    """The same symbols; one that stands for a section that has moved has its new address."""
    size = old.size - old.size % SYMBOL.size
    rows, now = (bytes(elf.content(section)) for elf, section in ((before, old), (after, new)))
    if rows[size:] != now[size:]:
        raise _fail(f"section {old.name} has other bytes")
    for row, found in zip(SYMBOL.iter_unpack(rows[:size]), SYMBOL.iter_unpack(now[:size]), strict=True):
        name, info, other, index, value, length = row
        if info & 0xF == _SECTION_SYMBOL and index in moved:
            value = after.sections[index].address
        if found != (name, info, other, index, value, length):
            raise _fail(f"section {old.name} has other symbols")


def _section_at(elf: ElfFile, tag: DynamicTag) -> int:
    address = elf.dynamic_value(tag)
    return next(s.index for s in elf.sections if s.allocated and s.in_file and s.address == address)


def _check_place(elf: ElfFile, name: str, where: DynamicTag, length: DynamicTag) -> None:
    found: list[Section] = [section for section in elf.sections if section.name == name]
    if len(found) != 1 or (found[0].address, found[0].size) != (elf.dynamic_value(where), elf.dynamic_value(length)):
        raise _fail(f"section {name} is not the table that is loaded")
