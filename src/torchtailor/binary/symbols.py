"""The dynamic symbols of a library, and the names in its dynamic section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.elf_headers import SYMBOL, DynamicTag, SectionType
from torchtailor.errors import BadInputError

_MAX_NAME = 4096
_UNDEFINED = 0


class DynamicSymbol(NamedTuple):
    """One row of the dynamic symbol table."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def undefined(self) -> bool:
        return self.section == _UNDEFINED


def dynamic_symbols(elf: ElfFile) -> Iterator[DynamicSymbol]:
    """The rows of the dynamic symbol table in their order, the empty first one included."""
    table = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if table is None or table.link >= len(elf.sections):
        return
    names = bytes(elf.content(elf.sections[table.link]))
    content = bytes(elf.content(table))
    for name, info, other, section, value, size in SYMBOL.iter_unpack(
        content[: len(content) // SYMBOL.size * SYMBOL.size]
    ):
        end = names.find(b"\0", name)
        if name > len(names) or end < 0:
            raise BadInputError("A dynamic symbol has its name outside of the table of names.")
        yield DynamicSymbol(names[name:end].decode("utf-8", "backslashreplace"), info, other, section, value, size)


def undefined_symbols(elf: ElfFile) -> set[str]:
    """The names that other libraries must define."""
    return {symbol.name for symbol in dynamic_symbols(elf) if symbol.undefined and symbol.name}


def needed_libraries(elf: ElfFile) -> tuple[str, ...]:
    """The names of the libraries that are loaded with this one, in their order."""
    return tuple(_text(elf, entry.value) for entry in elf.dynamic if entry.tag == DynamicTag.NEEDED)


def dynamic_text(elf: ElfFile, tag: DynamicTag) -> str:
    """A text of the dynamic section, such as the soname; empty where there is none or it cannot be read."""
    value = elf.dynamic_value(tag)
    return "" if value is None else _text(elf, value)


def _text(elf: ElfFile, at: int) -> str:
    table = elf.dynamic_value(DynamicTag.STRTAB)
    offset = elf.offset_of(table) if table is not None else None
    size = elf.dynamic_value(DynamicTag.STRSZ) or 0
    if offset is None:
        return ""
    try:
        data = bytes(elf.read(offset + at, min(_MAX_NAME, size - at)))
    except BadInputError:
        return ""
    return data.partition(b"\0")[0].decode("utf-8", "replace")
