"""Filler that `patchelf` leaves: where a section was that it moved to the end of the file, there are only `X` or `Z`.

cuSPARSELt 0.7.1 has 26 MB of it, once its dynamic strings. It may leave the file if it is surely nobody's: it lies
between two sections of a loaded segment, and no other program header, relocation, dynamic entry or dynamic
symbol has an address in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SYMBOL, SectionType, SegmentType
from torchtailor.surgery.layout import MIN_HOLE, Span

_RUN = re.compile(rb"X{%d,}|Z{%d,}" % (MIN_HOLE, MIN_HOLE))
_MAX_GAP = 1 << 30  # read at once
# dynamic entries whose value is a size, a number, flags or the offset of a string; all others count as addresses
_NO_ADDRESSES = frozenset((
    1, 2, 8, 9, 10, 11, 14, 15, 16, 18, 19, 20, 22, 24, 27, 28, 29, 30, 33, 35, 37,
    0x6FFFFFF9, 0x6FFFFFFA, 0x6FFFFFFB, 0x6FFFFFFD, 0x6FFFFFFF,
))  # fmt: skip


def find_filler(elf: ElfFile) -> tuple[Span, ...]:
    """The ranges of addresses that hold filler and nothing that anybody refers to."""
    found = tuple(span for gap in _gaps(elf) for span in _runs(elf, gap))
    return tuple(span for span in found if not is_referred_to(elf, span)) if found else ()


def _gaps(elf: ElfFile) -> Iterator[Span]:
    """What no section covers, between the sections of each loaded segment: the headers come before the first one."""
    for load in elf.loads:
        inside = sorted(
            Span(section.address, section.memory_end)
            for section in elf.sections
            if section.allocated and section.in_file and section.size and elf.load_at(section.address) is load
        )
        reached = inside[0].end if inside else 0
        for _, section in pairwise(inside):
            if section.start - reached >= MIN_HOLE and section.start - reached <= _MAX_GAP:
                yield Span(reached, section.start)
            reached = max(reached, section.end)


def _runs(elf: ElfFile, gap: Span) -> Iterator[Span]:
    offset = elf.offset_of(gap.start)
    if offset is None or elf.offset_of(gap.end - 1) != offset + gap.size - 1:
        return
    for run in _RUN.finditer(elf.read(offset, gap.size)):
        yield Span(gap.start + run.start(), gap.start + run.end())


def is_referred_to(elf: ElfFile, span: Span) -> bool:
    """Whether a program header, relocation, dynamic entry or dynamic symbol has an address in it."""
    segments = (s for s in elf.segments if s.type != SegmentType.LOAD and s.memory_size)
    if any(s.address < span.end and span.start < s.memory_end for s in segments):
        return True
    table = elf.address_of(elf.header.segment_table_offset)
    if table is not None and span.start <= table < span.end:
        return True
    if any(span.start <= entry.value < span.end for entry in elf.dynamic if entry.tag not in _NO_ADDRESSES):
        return True
    if next(elf.relocations_into(span.start, span.end), None) or elf.relocations_in(span.start, span.end):
        return True
    symbols = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if symbols is None:
        return False
    content = elf.content(symbols)
    rows = SYMBOL.iter_unpack(content[: len(content) - len(content) % SYMBOL.size])
    return any(span.start <= value < span.end for _, _, _, index, value, _ in rows if index)
