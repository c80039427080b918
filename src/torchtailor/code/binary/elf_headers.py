"""The records of an ELF file and the numbers in them that somebody asks about."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
DYNAMIC_ENTRY = struct.Struct("<qQ")
RELA = struct.Struct("<QQq")
SYMBOL = struct.Struct("<IBBHQQ")
VERSION_DEFINITION = struct.Struct("<HHHHIII")
VERSION_NAME = struct.Struct("<II")  # of a definition
VERSION_NEED = struct.Struct("<HHIII")
VERSION_NEEDED = struct.Struct("<IHHII")  # one version of a need


class ElfMachine(IntEnum):
    """The processors whose libraries we read."""

    X86_64 = 62
    AARCH64 = 183

    @property
    def arch(self) -> str:
        """The name used in wheel tags."""
        return self.name.lower()

    @property
    def relative(self) -> int:
        """The relocation type that means "load address plus addend"."""
        return 8 if self is ElfMachine.X86_64 else 1027


class FileType(IntEnum):
    RELOCATABLE = 1
    EXECUTABLE = 2
    SHARED = 3


class SegmentType(IntEnum):
    """The program header types somebody asks for; others stay plain numbers."""

    LOAD = 1
    DYNAMIC = 2
    INTERP = 3
    NOTE = 4
    PHDR = 6
    TLS = 7
    GNU_EH_FRAME = 0x6474E550
    GNU_STACK = 0x6474E551
    GNU_RELRO = 0x6474E552


class SectionType(IntEnum):
    """The section types somebody asks for; others stay plain numbers."""

    NULL = 0
    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    HASH = 5
    DYNAMIC = 6
    NOTE = 7
    NOBITS = 8
    REL = 9
    DYNSYM = 11
    RELR = 19
    GNU_HASH = 0x6FFFFFF6
    VERDEF = 0x6FFFFFFD
    VERNEED = 0x6FFFFFFE
    VERSYM = 0x6FFFFFFF


class SymbolType(IntEnum):
    """The kinds of symbols somebody asks for."""

    NONE = 0
    OBJECT = 1
    FUNC = 2


class SectionFlag(IntFlag):
    WRITE = 0x1
    ALLOC = 0x2
    EXECUTE = 0x4
    COMPRESSED = 0x800


class DynamicTag(IntEnum):
    """The dynamic tags somebody asks for."""

    NULL = 0
    NEEDED = 1
    PLTRELSZ = 2
    HASH = 4
    STRTAB = 5
    SYMTAB = 6
    RELA = 7
    RELASZ = 8
    RELAENT = 9
    STRSZ = 10
    SYMENT = 11
    SONAME = 14
    RPATH = 15
    JMPREL = 23
    RUNPATH = 29
    RELRSZ = 35
    RELR = 36
    RELRENT = 37
    GNU_HASH = 0x6FFFFEF5
    VERSYM = 0x6FFFFFF0
    RELACOUNT = 0x6FFFFFF9
    VERDEF = 0x6FFFFFFC
    VERDEFNUM = 0x6FFFFFFD
    VERNEED = 0x6FFFFFFE


@dataclass(frozen=True, slots=True)
class Header:
    """The file header."""

    machine: ElfMachine
    type: FileType
    entry: int
    segment_table_offset: int
    section_table_offset: int
    flags: int
    segment_count: int
    section_count: int
    name_section: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header."""

    index: int
    type: int
    flags: int
    offset: int
    address: int
    physical_address: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def file_end(self) -> int:
        return self.offset + self.file_size

    @property
    def memory_end(self) -> int:
        return self.address + self.memory_size


@dataclass(frozen=True, slots=True)
class Section:
    """One section header, with its name."""

    index: int
    name: str
    name_offset: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    @property
    def allocated(self) -> bool:
        """Whether the section is part of the loaded image."""
        return bool(self.flags & SectionFlag.ALLOC)

    @property
    def executable(self) -> bool:
        return bool(self.flags & SectionFlag.EXECUTE)

    @property
    def in_file(self) -> bool:
        """Whether the section has bytes in the file."""
        return self.type not in (SectionType.NULL, SectionType.NOBITS) and self.size > 0

    @property
    def file_end(self) -> int:
        return self.offset + (self.size if self.type != SectionType.NOBITS else 0)

    @property
    def memory_end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class DynamicEntry:
    """One entry of the dynamic table, with where it stands in the file."""

    offset: int
    tag: int
    value: int


class Relocation(NamedTuple):
    """A pointer the loader fills with "load address plus addend" (a tuple: there are hundreds of thousands)."""

    record_offset: int | None  # of the RELA record in the file; None for RELR, whose addend is in place only
    place: int  # virtual address of the pointer
    addend: int  # virtual address it will point to
