"""Proof, part two: the headers of the output describe the same library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    HEADER,
    PROGRAM_HEADER,
    SYMBOL,
    Section,
    SectionFlag,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.code.gpucode.scan import CODE_STARTS
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import same_bytes
from torchtailor.surgery.headers import TABLE_MARK, TABLE_SECTION
from torchtailor.surgery.layout import page_size
from torchtailor.surgery.proof.unwind import left_tables
from torchtailor.surgery.strip import removable_sections

# of the file header: where the two tables are and how long they are, and which section has the names
_TABLE_FIELDS = (5, 6, 10, 12, 13)
_INFO_LINK = 0x40
_INSTRUCTIONS = 0x4  # of the flags of a section
_EXECUTABLE = 0x1  # of those of a segment


def check_segments(before: ElfFile, after: ElfFile) -> None:
    """Same file header; same segments; each loaded segment of the output is part of one of the input."""
    if _identity(before) != _identity(after):
        raise CheckFailedError("The file header of the output differs from that of the input.")
    if _small(before) != _small(after):
        raise CheckFailedError("The output has other program headers than the input.")
    for segment in after.segments:
        loaded = segment.type in (SegmentType.LOAD, SegmentType.PHDR)
        if not loaded and after.offset_of(segment.address) not in (None, segment.offset):
            raise CheckFailedError(f"Program header {segment.index} of the output has a wrong offset.")
    page = page_size(before.machine, before.loads)
    pieces: dict[int, list[Segment]] = {}
    for load in after.loads:
        whole = before.load_at(load.address)
        if whole is None or load.flags not in _allowed(before, load, whole) or load.memory_end > whole.memory_end:
            raise CheckFailedError(f"Program header {load.index} of the output loads what the input does not.")
        shift = load.address - whole.address
        if load.physical_address != (whole.physical_address + shift) % 2**64:
            raise CheckFailedError(f"Program header {load.index} of the output has another physical address.")
        if load.alignment not in (page, whole.alignment) or (load.address - load.offset) % load.alignment:
            raise CheckFailedError(f"Program header {load.index} of the output is not aligned.")
        pieces.setdefault(whole.index, []).append(load)
    for whole in before.loads:
        _check_pieces(whole, pieces.get(whole.index, []), page)
    if max(load.alignment for load in after.loads) != max(load.alignment for load in before.loads):
        raise CheckFailedError("The output as a whole is aligned otherwise.")
    _check_table(after)


def _allowed(before: ElfFile, load: Segment, whole: Segment) -> set[int]:
    """The flags that a piece may have: those it had, or not executable where the input has no instructions."""
    for section in before.sections:
        overlaps = section.address < load.memory_end and load.address < section.memory_end
        if section.allocated and section.flags & _INSTRUCTIONS and overlaps:
            return {whole.flags}
    return {whole.flags, whole.flags & ~_EXECUTABLE} if before.sections else {whole.flags}


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
    gone |= {section.index for section in left_tables(before, after)}
    _check_own_section(before, after)
    rest = [section for section in after.sections if section.name != TABLE_SECTION]
    for old in before.sections:
        if old.name == TABLE_SECTION:
            continue  # of an earlier tailoring
        new = rest[0] if rest else None
        if old.index in gone and not (new and new.name == old.name and new.size == 0):
            continue  # a dynamic symbol may hold the number of one behind it, whose header then stays
        if new is None or new.name != old.name:
            raise CheckFailedError(f"The output lacks section {old.name}.")
        rest.pop(0)
        if old.index not in gone:
            _check_same(before, after, old, new)
    for section in rest:  # what a hole cut off a section
        named = [old for old in before.sections if old.name == section.name and old.allocated]
        wholes = [old for old in named if _nature(before, old) == _nature(after, section)]
        if not wholes:
            raise CheckFailedError(f"The output has a section {section.name} that the input does not have.")
        # an earlier tailoring may have left several of its name
        if not any(old.address <= section.address and section.memory_end <= old.memory_end for old in wholes):
            raise CheckFailedError(f"Section {section.name} of the output reaches beyond what it was.")
    for section in after.sections:
        if section.allocated and section.in_file:
            _check_place(before, after, section)


def _check_same(before: ElfFile, after: ElfFile, old: Section, new: Section) -> None:
    if _nature(before, old) != _nature(after, new) or old.address != new.address:
        raise CheckFailedError(f"Section {old.name} is something else in the output.")
    if old.index == before.header.name_section:
        if new.index != after.header.name_section:
            raise CheckFailedError("The names of the sections of the output are somewhere else.")
        return
    if new.size > old.size or (new.size < old.size and not _holds_code(before, old)):
        raise CheckFailedError(f"Section {old.name} of the output has another size.")
    if old.allocated or not old.in_file:
        return
    if new.size != old.size or not same_bytes(before.source, old.offset, after.source, new.offset, old.size):
        raise CheckFailedError(f"Section {old.name} has other bytes in the output.")


def _nature(elf: ElfFile, section: Section) -> tuple[object, ...]:
    """What a section is, apart from where it lies; other sections by name, for their numbers may change."""
    link = elf.sections[section.link].name if section.link < len(elf.sections) else None
    info: object = section.info
    if section.flags & _INFO_LINK:
        info = elf.sections[section.info].name if section.info < len(elf.sections) else None
    return section.type, section.flags, section.alignment, section.entry_size, link, info


def _holds_code(elf: ElfFile, section: Section) -> bool:
    """Whether there is a container in it, so that it may have become shorter."""
    found = elf.source.find(CODE_STARTS, section.offset, section.file_end) if section.in_file else -1
    return found >= 0


def _check_own_section(before: ElfFile, after: ElfFile) -> None:
    """The small section behind the program headers is there if, and only if, they moved."""
    own = [section for section in after.sections if section.name == TABLE_SECTION]
    table = after.address_of(after.header.segment_table_offset)
    wanted = 0 if table == before.address_of(before.header.segment_table_offset) else 1
    tailored = sum(section.name == TABLE_SECTION for section in before.sections)
    if len(own) != wanted + tailored:
        raise CheckFailedError("The section behind the program headers of the output is missing.")
    for section in own:
        plain = (SectionType.PROGBITS, SectionFlag.ALLOC, 8, 0, "", 0)
        if _nature(after, section) != plain or section.size != len(TABLE_MARK):
            raise CheckFailedError("The section behind the program headers of the output is something else.")


def _check_place(before: ElfFile, after: ElfFile, section: Section) -> None:
    if before.load_at(section.address) is None:
        return  # marked as loaded, but in no segment
    place = (after.offset_of(section.address), after.offset_of(section.memory_end - 1))
    if place != (section.offset, section.file_end - 1):
        raise CheckFailedError(f"Section {section.name} of the output is not where its address says.")


def check_symbols(before: ElfFile, after: ElfFile) -> Iterator[int]:
    """Dynamic symbols are what they were; one may name another part of its section, in which it then is.

    Yields the addresses of the words that differ so.
    """
    tables = [next((s for s in elf.sections if s.type == SectionType.DYNSYM), None) for elf in (before, after)]
    old, new = tables
    if old is None or new is None:
        return
    contents = [elf.content(table)[: old.size - old.size % SYMBOL.size] for elf, table in ((before, old), (after, new))]
    if contents[0] == contents[1]:
        return
    for row, (was, now) in enumerate(zip(*map(SYMBOL.iter_unpack, contents), strict=True)):
        if was == now:
            continue
        name, info, other, index, value, size = now
        same = (name, info, other, was[3], value, size) == was and max(was[3], index) < len(after.sections)
        part = after.sections[index] if same else None
        if part is None or part.name != before.sections[was[3]].name or not part.address <= value < part.memory_end:
            raise CheckFailedError(f"Dynamic symbol {row} of the output is not what it was.")
        yield old.address + row * SYMBOL.size
