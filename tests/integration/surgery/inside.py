"""Loads a library and looks from inside the process: which container does each pointer in its memory lead to?

    python -m tests.integration.surgery.inside LIBRARY

Prints a JSON list of [address of the pointer, number of the container], after relocation and after the library's own
constructors have run. Read-only sections are compared with the file on the way.
"""

from __future__ import annotations

import ctypes
import json
import sys
from array import array
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SectionFlag
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.surgery.files import open_file

_WRITE = 2  # of a segment's flags
_MAGIC = 0xBA55ED50


def main(path: Path) -> None:
    ctypes.CDLL(str(path))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(path)))
    with open_file(path) as source:
        elf = ElfFile(source)
        base -= elf.loads[0].address & ~0xFFF
        code = scan_elf(elf)
        number = {base + found.address: index for index, found in enumerate(code.containers) if found.address}
        for found in code.containers:
            if found.address:
                stored = source.read(found.container.offset, found.container.stored_size)
                assert ctypes.string_at(base + found.address, len(stored)) == stored
        for section in elf.sections:
            if section.allocated and section.in_file and not section.flags & SectionFlag.WRITE:
                stored = source.read(section.offset, section.size)
                assert ctypes.string_at(base + section.address, section.size) == stored, section.name
        where = []
        for load in elf.loads:
            if load.flags & _WRITE:
                start = load.address + -load.address % 8
                words = array("Q")
                words.frombytes(ctypes.string_at(base + start, (load.memory_end - start) // 8 * 8))
                where += [(start + 8 * at, number[word]) for at, word in enumerate(words) if word in number]
    for _, index in where:
        address = code.containers[index].address
        assert address is not None
        assert ctypes.c_uint32.from_address(base + address).value == _MAGIC
    print(json.dumps(where))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
