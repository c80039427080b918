"""What tells a library from every other, and stays the same when its GPU code is cut.

Paths and hashes of files do not: a trace may be taken from the stock library and used for one that was cut before, or
the other way round. The unwind table names the address of every function, and neither cutting nor patchelf changes it;
libraries without one are known by their instructions.
"""

from __future__ import annotations

import hashlib

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SegmentType
from torchtailor.code.gpucode.scan import LibraryCode
from torchtailor.workload.host_table import host_table

_CHUNK = 1 << 20
_DIGEST = 16


def library_identity(elf: ElfFile, code: LibraryCode) -> str:
    """Hex digits that are the same for a library and whatever was cut from it."""
    if table := host_table(elf):
        return table.identity
    hasher = hashlib.blake2b(digest_size=_DIGEST)
    hasher.update(f"{elf.header.machine} {len(loaded_containers(code))}\n".encode())
    for section in elf.sections:
        if section.executable and section.in_file:
            hasher.update(f"{section.name} {section.address:x} {section.size:x}\n".encode())
    tables = [segment for segment in elf.segments if segment.type == SegmentType.GNU_EH_FRAME and segment.file_size]
    ranges = [(table.offset, table.file_size) for table in tables]
    if not ranges:
        ranges = [(s.offset, s.size) for s in elf.sections if s.executable and s.in_file]
    for offset, size in ranges:
        for at in range(0, size, _CHUNK):
            hasher.update(elf.read(offset + at, min(_CHUNK, size - at)))
    return hasher.hexdigest()


def loaded_containers(code: LibraryCode) -> list[int]:
    """The containers that a program can load, as positions in `code.containers`; a trace counts among these."""
    loaded = [(found.address, index) for index, found in enumerate(code.containers) if found.address is not None]
    return [index for _, index in sorted(loaded)]
