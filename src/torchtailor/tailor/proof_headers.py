"""Proof, part two: the headers of the output describe the same library."""

from __future__ import annotations

from itertools import pairwise

from torchtailor.errors import CheckFailedError
from torchtailor.gpucode.elf import ElfFile
from torchtailor.gpucode.elf_headers import HEADER, PROGRAM_HEADER, Section, Segment, SegmentType
from torchtailor.tailor.files import same_bytes
from torchtailor.tailor.headers import TABLE_SECTION
from torchtailor.tailor.layout import page_size
from torchtailor.tailor.strip import removable_sections

# of the file header: where the two tables are and how long they are, and which section has the names
_TABLE_FIELDS = (5, 6, 10, 12, 13)


def check_segments(before: ElfFile, after: ElfFile) -> None:
    """Same file header; same segments; each loaded segment of the output is part of one of the input."""
    if _identity(before) != _identity(after):
        raise CheckFailedError("The file header of the output says something else.")
    if _small(before) != _small(after):
        raise CheckFailedError("The output has other program headers than the input.")
    for segment in after.segments:
        loaded = segment.type in (SegmentType.LOAD, SegmentType.PHDR) or not segment.file_size
        if not loaded and after.offset_of(segment.address) not in (None, segment.offset):
            raise CheckFailedError(f"Program header {segment.index} of the output has a wrong offset.")
    page = page_size(before.machine, before.loads)
    pieces: dict[int, list[Segment]] = {}
    for load in after.loads:
        whole = before.load_at(load.address)
        if whole is None or load.flags != whole.flags or load.memory_end > whole.memory_end:
            raise CheckFailedError(f"Program header {load.index} of the output loads what the input does not.")
        if load.alignment < page or (load.address - load.offset) % load.alignment:
            raise CheckFailedError(f"Program header {load.index} of the output is not aligned.")
        pieces.setdefault(whole.index, []).append(load)
    for whole in before.loads:
        _check_pieces(whole, pieces.get(whole.index, []), page)
    if max(load.alignment for load in after.loads) != max(load.alignment for load in before.loads):
        raise CheckFailedError("The output as a whole is aligned otherwise.")
    _check_table(after)


def _check_pieces(whole: Segment, pieces: list[Segment], page: int) -> None:
    for one, other in pairwise(pieces):
        if -(-one.memory_end // page) > other.address // page or one.memory_size != one.file_size:
            raise CheckFailedError("Two loaded segments of the output share a page.")
    zeroed = whole.memory_size > whole.file_size
    if not pieces or (zeroed and pieces[-1].memory_end != whole.memory_end):
        raise CheckFailedError(f"The output lacks the loaded segment at {whole.address:#x}.")
    last = pieces[-1]
    if zeroed and last.address + last.file_size != whole.address + whole.file_size:
        raise CheckFailedError(f"The zeroed memory behind {whole.address:#x} begins elsewhere.")
    if not zeroed and last.memory_size != last.file_size:
        raise CheckFailedError("A loaded segment of the output ends in zeros that the input does not have.")


def _check_table(after: ElfFile) -> None:
    """The loader finds the program headers in memory through the segment that holds them."""
    offset = after.header.segment_table_offset
    size = len(after.segments) * PROGRAM_HEADER.size
    address = after.address_of(offset)
    if address is None or after.address_of(offset + size - 1) != address + size - 1:
        raise CheckFailedError("The program headers of the output are not in a loaded segment.")
    for segment in after.segments:
        if segment.type == SegmentType.PHDR and (segment.address, segment.file_size) != (address, size):
            raise CheckFailedError("The output's PHDR segment is not where its program headers are.")


def _identity(elf: ElfFile) -> list[object]:
    fields = HEADER.unpack(elf.read(0, HEADER.size))
    return [field for index, field in enumerate(fields) if index not in _TABLE_FIELDS]


def _small(elf: ElfFile) -> list[tuple[int, ...]]:
    skip = (SegmentType.LOAD, SegmentType.PHDR)
    rows = [
        (s.type, s.flags, s.address, s.physical_address, s.file_size, s.memory_size, s.alignment)
        for s in elf.segments
        if s.type not in skip
    ]
    return sorted(rows)


def check_sections(before: ElfFile, after: ElfFile, *, stripped: bool) -> None:
    """Each section is there as before, in the same order; no other went than may go, none came but our own."""
    gone = removable_sections(before) if stripped else frozenset()
    rest = [section for section in after.sections if section.name != TABLE_SECTION]
    for old in before.sections:
        new = rest[0] if rest else None
        if old.index in gone and not (new and new.name == old.name and new.size == 0):
            continue
        if new is None or new.name != old.name:
            raise CheckFailedError(f"The output lacks section {old.name}.")
        rest.pop(0)
        if old.index not in gone:
            _check_same(before, after, old, new)
    for section in rest:  # what a hole cut off a section
        whole = next((old for old in before.sections if old.name == section.name and old.allocated), None)
        inside = whole and whole.address <= section.address and section.memory_end <= whole.memory_end
        if not inside or not section.allocated:
            raise CheckFailedError(f"The output has a section {section.name} that the input does not have.")
    for section in after.sections:
        if section.allocated and section.in_file:
            _check_place(after, section)


def _check_same(before: ElfFile, after: ElfFile, old: Section, new: Section) -> None:
    fields = ("type", "flags", "address", "alignment", "entry_size")
    if any(getattr(old, field) != getattr(new, field) for field in fields) or new.size > old.size:
        names = old.index == before.header.name_section and new.index == after.header.name_section
        if not names or old.type != new.type:
            raise CheckFailedError(f"Section {old.name} is something else in the output.")
    if _linked(before, old) != _linked(after, new):
        raise CheckFailedError(f"Section {old.name} of the output is linked to another section.")
    if old.allocated or not old.in_file or old.index == before.header.name_section:
        return
    if new.size != old.size or not same_bytes(before.source, old.offset, after.source, new.offset, old.size):
        raise CheckFailedError(f"Section {old.name} has other bytes in the output.")


def _linked(elf: ElfFile, section: Section) -> str:
    return elf.sections[section.link].name if section.link < len(elf.sections) else ""


def _check_place(elf: ElfFile, section: Section) -> None:
    start = elf.offset_of(section.address)
    end = elf.offset_of(section.memory_end - 1)
    if start is not None and (start, end) != (section.offset, section.offset + section.size - 1):
        raise CheckFailedError(f"Section {section.name} of the output is not where its address says.")
