"""Unwind tables that BOLT has replaced: it keeps the old ones, loaded, as `.bolt.org.eh_frame` and `..._hdr`.

21 MB of torch 2.15 for aarch64. They are dead where the table that the unwinder searches (PT_GNU_EH_FRAME) leads to the
new ones alone, and nothing else in the library leads to them: no relocation, symbol, dynamic entry or instruction.
The old tables of handlers (`.bolt.org.gcc_except_table`) are in use.
"""

from __future__ import annotations

from array import array

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Section, SectionType, SegmentType
from torchtailor.code.binary.instructions import code_leads_into
from torchtailor.surgery.filler import is_referred_to
from torchtailor.surgery.layout import Span

OLD_TABLES = (".bolt.org.eh_frame", ".bolt.org.eh_frame_hdr")
_HEADER = 12  # version, three encodings, the address of the entries, their number
_ENCODINGS = bytes((1, 0x1B, 0x03, 0x3B))  # as all linkers write them: relative, in 32 bits, sorted
_ROW = 2  # of the search table: where a function begins, where its entry is


def dead_tables(elf: ElfFile) -> tuple[Section, ...]:
    """The old unwind tables of a library that BOLT has rewritten, where nothing leads to them any more."""
    old = tuple(
        section
        for section in elf.sections
        if section.name in OLD_TABLES
        and section.allocated
        and section.in_file
        and section.type == SectionType.PROGBITS
        and elf.load_at(section.address)
    )
    spans = [Span(section.address, section.memory_end) for section in old]
    if not old or not _searched_elsewhere(elf, spans) or any(is_referred_to(elf, span) for span in spans):
        return ()
    return () if code_leads_into(elf, spans) else old


def _searched_elsewhere(elf: ElfFile, spans: list[Span]) -> bool:
    """Whether the search table leads into one other section, which has the common parts of all entries too."""
    table = next((segment for segment in elf.segments if segment.type == SegmentType.GNU_EH_FRAME), None)
    if table is None or table.file_size < _HEADER:
        return False
    data = bytes(elf.read(table.offset, table.file_size))
    count = int.from_bytes(data[8:12], "little")
    if data[:4] != _ENCODINGS or table.file_size < _HEADER + count * 4 * _ROW:
        return False
    start = table.address + 4 + int.from_bytes(data[4:8], "little", signed=True)
    entries = next((s for s in elf.sections if s.allocated and s.in_file and s.address == start), None)
    if entries is None or any(span.start < entries.memory_end and entries.address < span.end for span in spans):
        return False
    rows = array("i", data[_HEADER : _HEADER + count * 4 * _ROW])[1::_ROW]
    content = bytes(elf.content(entries))
    for distance in rows:
        at = table.address + distance - entries.address
        if not 0 <= at <= len(content) - 8:
            return False
        common = at + 4 - int.from_bytes(content[at + 4 : at + 8], "little")
        if not 0 <= common < at:
            return False
    return True
