"""An open library: its bytes, its ELF tables and its GPU code."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.gpucode.scan import LibraryCode, scan_elf
from torchtailor.surgery.files import FileSource


@dataclass(frozen=True, slots=True)
class OpenLibrary:
    """A library that was read from scratch."""

    source: FileSource
    elf: ElfFile
    code: LibraryCode

    @classmethod
    def read(cls, source: FileSource) -> OpenLibrary:
        elf = ElfFile(source)
        return cls(source, elf, scan_elf(elf))
