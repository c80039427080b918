"""Which sections go with the symbol tables: what `strip` removes, and never anything that is loaded."""

from __future__ import annotations

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Section, SectionType

_SYMTAB_SHNDX = 18
_REL = 9
_DEBUG_NAMES = (".debug", ".zdebug", ".gnu.debuglto_", ".gnu_debug", ".stab", ".line", ".gdb_index")


def removable_sections(elf: ElfFile) -> frozenset[int]:
    """The indices of sections that nothing needs at run time: symbol tables, their names, debug information."""
    unloaded = [section for section in elf.sections if not section.allocated and section.index > 0]
    gone = {section.index for section in unloaded if _is_symbols(section) or _is_debug(section)}
    tables = {s.link for s in elf.sections if s.index in gone and s.type == SectionType.SYMTAB}
    for index in tables:
        shared = any(s.link == index for s in elf.sections if s.index not in gone)
        if index < len(elf.sections) and not shared and not elf.sections[index].allocated:
            gone.add(index)
    return frozenset(gone - {0, elf.header.name_section})


def _is_symbols(section: Section) -> bool:
    kinds = (SectionType.SYMTAB, _SYMTAB_SHNDX, _REL, SectionType.RELA)
    return section.type in kinds


def _is_debug(section: Section) -> bool:
    return section.name.startswith(_DEBUG_NAMES)


def moves_symbols(elf: ElfFile, gone: frozenset[int]) -> bool:
    """Whether removing these headers would renumber a section that dynamic symbols name."""
    table = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if table is None or not gone:
        return False
    content = elf.content(table)
    halves = memoryview(content)[: len(content) - len(content) % 24].cast("H")
    return any(min(gone) < index < 0xFF00 for index in set(halves[3::12]))
