"""Addresses that instructions compute, found by pattern in all code of a file: no disassembly, so it may find more."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from struct import unpack_from

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.elf_headers import ElfMachine

_PLTGOT = 3
_WINDOW = 8 << 20  # bytes of code looked at at a time
_PAGE = 1 << 12
_MAX_DISTANCE = 16  # instructions between the two halves of an address
_OVERLAP = _MAX_DISTANCE * 4

_LEA = re.compile(rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]")
_MOVABS = re.compile(rb"[\x48\x49][\xb8-\xbf]")
_ADR_OR_ADRP = re.compile(rb"[\x10\x30\x50\x70\x90\xb0\xd0\xf0]")  # the last byte of the word
_ADRP = 0x80000000


def got_address(elf: ElfFile) -> int | None:
    """The address from which the medium code model counts."""
    return elf.dynamic_value(_PLTGOT) if elf.machine is ElfMachine.X86_64 else None


def movabs_immediates(code: bytes | bytearray | memoryview, address: int) -> Iterator[tuple[int, int]]:
    """(address of the immediate, its value) of everything that looks like `movabs $imm64, %reg`."""
    last = len(code) - 10
    for match in _MOVABS.finditer(code):
        at = match.start()
        if at <= last:
            yield address + at + 2, unpack_from("<q", code, at + 2)[0]


def named_by_code(elf: ElfFile, addresses: Collection[int]) -> set[int]:
    """Those of the addresses that instructions compute: relative to themselves, or to the GOT."""
    got = got_address(elf)
    wanted = frozenset(addresses)
    pages = frozenset(address // _PAGE for address in wanted)
    named: set[int] = set()
    for section in elf.sections:
        if not (section.executable and section.in_file and section.allocated):
            continue
        for start in range(0, section.size, _WINDOW):
            code = bytes(elf.read(section.offset + start, min(_WINDOW + _OVERLAP, section.size - start)))
            at = section.address + start
            targets = _x86_64(code, at, got) if elf.machine is ElfMachine.X86_64 else _aarch64(code, at, pages)
            named.update(wanted.intersection(targets))
    return named


def _x86_64(code: bytes, address: int, got: int | None) -> Iterator[int]:
    """Where `lea disp32(%rip)` leads, and `movabs` of a distance from the GOT; what only looks like one counts too."""
    base, last = address + 6, len(code) - 6
    for found in _LEA.finditer(code):
        at = found.start()
        if at <= last:
            yield base + at + unpack_from("<i", code, at + 2)[0]
    if got is not None:
        yield from (got + distance for _, distance in movabs_immediates(code, address))


def _aarch64(code: bytes, address: int, pages: frozenset[int]) -> Iterator[int]:
    """Where `adr` leads, and `adrp` with an `add` of the rest soon after it."""
    for found in _ADR_OR_ADRP.finditer(code):
        at = found.start() - 3
        if at < 0 or at % 4:
            continue
        (word,) = unpack_from("<I", code, at)
        distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        distance -= (distance >> 20) << 21
        own = address + at
        if not word & _ADRP:
            yield own + distance
        elif (page := own // _PAGE + distance) in pages:
            count = min(_MAX_DISTANCE, (len(code) - at) // 4 - 1)
            for following in unpack_from(f"<{count}I", code, at + 4):
                if following & 0xFFC00000 == 0x91000000 and following >> 5 & 31 == word & 31:
                    yield page * _PAGE + (following >> 10 & 0xFFF)
