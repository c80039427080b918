"""The dynamic symbols of a library, and the names in its dynamic section."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    SYMBOL,
    VERSION_NEED,
    VERSION_NEEDED,
    DynamicTag,
    Section,
    SectionType,
    SymbolType,
)
from torchtailor.core.errors import BadInputError

_MAX_NAME = 4096
_UNDEFINED = 0
_WEAK = 2
_VERSION = 0x7FFF  # the rest says whether it is hidden


class Symbol(NamedTuple):
    """One row of a symbol table."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def undefined(self) -> bool:
        return self.section == _UNDEFINED

    @property
    def weak(self) -> bool:
        return self.info >> 4 == _WEAK

    @property
    def is_data(self) -> bool:
        return self.info & 0xF == SymbolType.OBJECT

    @property
    def is_function(self) -> bool:
        return self.info & 0xF == SymbolType.FUNC and not self.undefined


class NeededSymbol(NamedTuple):
    """A symbol that another library must define."""

    name: str
    is_data: bool
    library: str = ""  # the one of whose version it is; empty where no version is asked for
    version: str = ""


def dynamic_symbols(elf: ElfFile) -> Iterator[Symbol]:
    """The rows of the dynamic symbol table in their order, the empty first one included."""
    return _symbols(elf, SectionType.DYNSYM)


def all_symbols(elf: ElfFile) -> Iterator[Symbol]:
    """The rows of the full symbol table where there is one, and else of the dynamic one."""
    full = any(section.type == SectionType.SYMTAB for section in elf.sections)
    return _symbols(elf, SectionType.SYMTAB if full else SectionType.DYNSYM)


def _symbols(elf: ElfFile, kind: SectionType) -> Iterator[Symbol]:
    table = next((section for section in elf.sections if section.type == kind), None)
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
        yield Symbol(names[name:end].decode("utf-8", "backslashreplace"), info, other, section, value, size)


def undefined_symbols(elf: ElfFile) -> set[str]:
    """The names that other libraries must define."""
    return {symbol.name for symbol in dynamic_symbols(elf) if symbol.undefined and symbol.name}


def needed_symbols(elf: ElfFile) -> Iterator[NeededSymbol]:
    """The symbols without which the library does not load (the weak ones may be absent), with their versions."""
    section = next((section for section in elf.sections if section.type == SectionType.VERSYM), None)
    numbers = array("H", bytes(elf.content(section))) if section else array("H")
    versions = _needed_versions(elf)
    for index, symbol in enumerate(dynamic_symbols(elf)):
        if symbol.undefined and symbol.name and not symbol.weak:
            number = numbers[index] & _VERSION if index < len(numbers) else 0
            yield NeededSymbol(symbol.name, symbol.is_data, *versions.get(number, ("", "")))


def _needed_versions(elf: ElfFile) -> dict[int, tuple[str, str]]:
    """Library and name of the versions that are asked for, by their numbers."""
    section = next((section for section in elf.sections if section.type == SectionType.VERNEED), None)
    if section is None or section.link >= len(elf.sections):
        return {}
    data, names = bytes(elf.content(section)), bytes(elf.content(elf.sections[section.link]))
    found = {}
    for at in _chain(section, data, 0, section.info, VERSION_NEED.size):
        _, count, library, first, _ = VERSION_NEED.unpack_from(data, at)
        for place in _chain(section, data, at + first, count, VERSION_NEEDED.size):
            _, _, number, name, _ = VERSION_NEEDED.unpack_from(data, place)
            found[number & _VERSION] = (_name_at(names, library), _name_at(names, name))
    return found


def _chain(section: Section, data: bytes, at: int, count: int, size: int) -> Iterator[int]:
    """Where the records of a chain are; the last field of each is the distance to the next."""
    for _ in range(count):
        if at + size > len(data):
            raise BadInputError(f"A version in {section.name} is outside of its section.")
        yield at
        at += int.from_bytes(data[at + size - 4 : at + size], "little")


def _name_at(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    if end < 0:
        raise BadInputError("A version has its name outside of the table of names.")
    return names[at:end].decode("utf-8", "backslashreplace")


def needed_libraries(elf: ElfFile) -> tuple[str, ...]:
    """The names of the libraries that are loaded with this one, in their order."""
    return tuple(_text(elf, entry.value) for entry in elf.dynamic if entry.tag == DynamicTag.NEEDED)


def c_library(elf: ElfFile) -> str:
    """The C library that a library says it is for: glibc, musl, or empty where it names none."""
    needed = needed_libraries(elf)
    if any("musl" in name or name == "libc.so" for name in needed):  # glibc's is libc.so.6
        return "musl"
    return "glibc" if any(name.startswith(("libc.so.6", "ld-linux-")) for name in needed) else ""


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
