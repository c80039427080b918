"""Proof, part four: every loaded byte that is not GPU code is the same at the same address."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import HEADER, PROGRAM_HEADER, SYMBOL, SectionType, SegmentType
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import CHUNK
from torchtailor.surgery.headers import TABLE_SECTION
from torchtailor.surgery.layout import Span, as_span, merge, subtract
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.pairs import ContainerPair
from torchtailor.surgery.proof.unwind import check_dead_tables, left_tables

_WORD = 8
_MAX_PADDING = 64
# dynamic entries that are addresses: GOT, hash and string tables, symbols, relocations, functions, versions
_ADDRESSES = (3, 4, 5, 6, 7, 12, 13, 17, 21, 23, 25, 26, 32, 34, 36, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)
_ADDRESS_RANGE = range(0x6FFFFE00, 0x6FFFFF00)
_FILLINGS = (b"\0", b"Z", b"X")


def check_loaded_bytes(
    before: OpenLibrary, after: OpenLibrary, pairs: Sequence[ContainerPair], changed: Sequence[int]
) -> None:
    """Compare all loaded bytes outside of containers; `changed` are addresses of words that may differ."""
    territory = _territory(before.elf, pairs)
    _check_inside(territory, pairs)
    territory = merge([*territory, *_dead_tables(before.elf, after.elf)])
    territory = merge([*territory, *_own_segments(territory, before.elf, after.elf)])
    _check_freed(territory, after, pairs)
    allowed = merge(
        [
            *(as_span((word, word + _WORD)) for word in changed),
            Span(before.elf.loads[0].address, before.elf.loads[0].address + HEADER.size),
            *_table(before.elf, after.elf, territory),
        ]
    )
    nobodys = _filler_that_left(before.elf, after.elf, territory)
    for load in before.elf.loads:
        whole = Span(load.address, load.address + load.file_size)
        for span in subtract([whole], merge([*territory, *nobodys])):
            _compare(before.elf, after.elf, span, allowed)


def _dead_tables(before: ElfFile, after: ElfFile) -> list[Span]:
    """The old unwind tables that left the output: nothing may lead to them."""
    dead = [Span(section.address, section.memory_end) for section in left_tables(before, after)]
    if dead:
        check_dead_tables(before, after, dead)
    for span in dead:
        if _is_target(before, span):
            raise CheckFailedError(f"The output lacks the unwind table at {span.start:#x}, to which something leads.")
    return dead


def _filler_that_left(before: ElfFile, after: ElfFile, territory: list[Span]) -> list[Span]:
    """What the output does not load, outside of that: all of it must be one letter over and over, that no section
    of the input has and nothing in it points to."""
    there = merge(Span(load.address, load.address + load.file_size) for load in after.loads)
    was = merge(Span(load.address, load.address + load.file_size) for load in before.loads)
    lost = subtract(subtract(was, there), territory)
    for span in lost:
        if not _is_filler(before, span):
            raise CheckFailedError(f"The output lacks loaded bytes at {span.start:#x}.")
    return lost


def _is_filler(elf: ElfFile, span: Span) -> bool:
    owners = [s.name for s in elf.sections if s.allocated and s.address < span.end and span.start < s.memory_end]
    return not owners and _one_letter(elf, span) and not _is_target(elf, span)


def _one_letter(elf: ElfFile, span: Span) -> bool:
    offset = elf.offset_of(span.start)
    letter = bytes(elf.read(offset, 1)) if offset is not None else b""
    if letter not in (b"X", b"Z") or offset is None:
        return False
    for start in range(offset, offset + span.size, CHUNK):
        size = min(CHUNK, offset + span.size - start)
        if bytes(elf.read(start, size)) != letter * size:
            return False
    return True


def _is_target(elf: ElfFile, span: Span) -> bool:
    """Whether any pointer, dynamic entry, symbol, or program header other than a loaded segment leads into it."""
    points = [entry.value for entry in elf.dynamic if entry.tag in _ADDRESSES or entry.tag in _ADDRESS_RANGE]
    points += [s.address for s in elf.segments if s.type != SegmentType.LOAD and s.memory_size]
    points += [elf.address_of(elf.header.segment_table_offset) or 0]
    for section in elf.sections:
        if section.type == SectionType.DYNSYM:
            data = elf.content(section)
            whole = data[: len(data) - len(data) % SYMBOL.size]
            points += [row[4] for row in SYMBOL.iter_unpack(whole)]
    if any(span.start <= point < span.end for point in points):
        return True
    return any(True for _ in elf.relocations_into(span.start, span.end))


def _territory(elf: ElfFile, pairs: Sequence[ContainerPair]) -> list[Span]:
    """Where the input has containers, and the padding between two: only there may the output differ."""
    loaded = [(p.before.address, p.before.container) for p in pairs if p.before.address is not None]
    loaded.sort(key=lambda found: found[0])
    spans = [as_span((address, address + container.stored_size)) for address, container in loaded]
    padding = []
    for (one, other), (_, container) in zip(pairwise(spans), loaded, strict=False):
        size = other.start - one.end
        if 0 < size < _MAX_PADDING and not any(elf.read(container.end, size)):
            padding.append(Span(one.end, other.start))
    whole = [
        Span(section.address, section.memory_end)
        for section in elf.sections
        if section.name in CONTAINER_SECTIONS and section.allocated
    ]
    others = subtract(merge(spans), merge(whole))
    return merge([*spans, *padding, *_ends_of_records(elf, others), *whole])


def _ends_of_records(elf: ElfFile, spans: list[Span]) -> Iterator[Span]:
    """Zeros behind a container up to where a pointer says that the next object begins."""
    if not spans:
        return
    targets = set(elf.pointers_into(spans[0].start, spans[-1].end + _MAX_PADDING).values())
    for span in spans:
        for end in range(span.end + 8, span.end + _MAX_PADDING, 8):
            if end in targets:
                if _is_zero(elf, span.end, end):
                    yield Span(span.end, end)
                break


def _is_zero(elf: ElfFile, start: int, end: int) -> bool:
    offset = elf.offset_of(start)
    return (
        offset is not None
        and elf.offset_of(end - 1) == offset + end - start - 1
        and not any(elf.read(offset, end - start))
    )


def _check_inside(territory: list[Span], pairs: Sequence[ContainerPair]) -> None:
    """Containers lie where the input had containers."""
    spans = [
        Span(p.after.address, p.after.address + p.after.container.stored_size)
        for p in pairs
        if p.after.address is not None
    ]
    outside = subtract(merge(spans), territory)
    if outside:
        raise CheckFailedError(f"The output has GPU code at {outside[0].start:#x}, where the input has other data.")


def _own_segments(territory: list[Span], before: ElfFile, after: ElfFile) -> list[Span]:
    """The segment of the program headers, where they moved: to where containers were, unused tables, or filler."""
    found = []
    for section in _own_sections(after) - _own_sections(before):
        load = after.load_at(section.start)
        span = Span(load.address, load.memory_end) if load else section
        outside = subtract([span], territory)
        if outside and not _is_filler(before, span):
            raise CheckFailedError(f"The program headers of the output lie at {span.start:#x}, over other data.")
        found.append(span)
    return found


def _check_freed(territory: list[Span], after: OpenLibrary, pairs: Sequence[ContainerPair]) -> None:
    """Nothing of the removed code is left: what containers do not need is not in the file, or zero."""
    elf = after.elf
    table = elf.address_of(elf.header.segment_table_offset) or 0
    taken = [Span(table, table + len(elf.segments) * PROGRAM_HEADER.size), *_own_sections(elf)]
    taken += [
        Span(p.after.address, p.after.address + p.after.container.stored_size)
        for p in pairs
        if p.after.address is not None
    ]
    mapped = merge(Span(load.address, load.address + load.file_size) for load in elf.loads)
    unmapped = subtract([Span(0, max(mapped[-1].end, territory[-1].end if territory else 0))], mapped)
    for span in subtract(subtract(territory, merge(taken)), unmapped):
        start = span.start
        while start < span.end:
            offset, load = elf.offset_of(start), elf.load_at(start)
            if offset is None or load is None:
                raise CheckFailedError(f"The output has no bytes at {start:#x}.")
            size = min(CHUNK, span.end - start, load.address + load.file_size - start)
            if bytes(elf.read(offset, size)) != bytes(size):
                raise CheckFailedError(f"Something of the removed code is left at {start:#x}.")
            start += size


def _own_sections(elf: ElfFile) -> set[Span]:
    return {Span(s.address, s.memory_end) for s in elf.sections if s.name == TABLE_SECTION}


def _table(before: ElfFile, after: ElfFile, territory: list[Span]) -> list[Span]:
    """The bytes of the program header table, where it stayed and grew into filling."""
    offset = after.header.segment_table_offset
    address = after.address_of(offset)
    if address is None:
        raise CheckFailedError("The program headers of the output are not in a loaded segment.")
    span = Span(address, address + len(after.segments) * PROGRAM_HEADER.size)
    if not subtract([span], territory):
        return []
    old = before.header.segment_table_offset
    if before.address_of(old) != address:
        raise CheckFailedError("The program headers of the output lie over other data.")
    grown = (len(after.segments) - len(before.segments)) * PROGRAM_HEADER.size
    filling = bytes(before.read(old + len(before.segments) * PROGRAM_HEADER.size, max(0, grown)))
    if not any(not filling.strip(letter) for letter in _FILLINGS):
        raise CheckFailedError("The program headers of the output lie over other data.")
    return [span]


def _compare(before: ElfFile, after: ElfFile, span: Span, allowed: list[Span]) -> None:
    start = span.start
    while start < span.end:
        size = min(CHUNK, span.end - start)
        here, there = before.offset_of(start), after.offset_of(start)
        if here is None or there is None or after.offset_of(start + size - 1) != there + size - 1:
            raise CheckFailedError(f"The output lacks loaded bytes at {start:#x}.")
        old, new = before.read(here, size), after.read(there, size)
        if old != new:
            _compare_closely(start, bytearray(old), bytearray(new), allowed)
        start += size


def _compare_closely(start: int, old: bytearray, new: bytearray, allowed: list[Span]) -> None:
    """Compare again without the words that may differ."""
    end = start + len(old)
    for span in allowed[max(0, bisect_left(allowed, Span(start, 0)) - 1) :]:
        if span.start >= end:
            break
        low, high = max(span.start, start) - start, min(span.end, end) - start
        if low < high:
            old[low:high] = new[low:high] = bytes(high - low)
    if old != new:
        at = next(index for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        raise CheckFailedError(f"A loaded byte at {start + at:#x} is not what it was.")
