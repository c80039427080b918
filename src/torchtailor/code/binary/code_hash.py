"""The instructions of a library as one hash: two libraries with the same one do the same on every CPU."""

from __future__ import annotations

import hashlib

from torchtailor.code.binary.elf import ElfFile

_STEP = 1 << 20


def instructions_sha256(elf: ElfFile) -> str:
    """The SHA-256 of all executable sections with their names, addresses and sizes, as hex digits."""
    hasher = hashlib.sha256()
    sections = [section for section in elf.sections if section.executable and section.in_file]
    for section in sorted(sections, key=lambda section: section.address):
        hasher.update(f"{section.name}\0{section.address:x}\0{section.size:x}\0".encode())
        for start in range(0, section.size, _STEP):
            hasher.update(elf.read(section.offset + start, min(_STEP, section.size - start)))
    return hasher.hexdigest()
