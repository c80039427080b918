"""Addresses that instructions compute, found by pattern in all code of a file: no disassembly, so it may find more."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.elf_headers import ElfMachine

_PLTGOT = 3
_WINDOW = 8 << 20  # bytes of code looked at at a time
_PAGE = 1 << 12
_MAX_DISTANCE = 16  # instructions between the two halves of an address

_Words = npt.NDArray[np.int64]


def named_by_code(elf: ElfFile, addresses: Collection[int]) -> set[int]:
    """Those of the addresses that instructions compute: relative to themselves, or to the GOT."""
    got = elf.dynamic_value(_PLTGOT)
    wanted = np.array(sorted(addresses), dtype=np.int64)
    named: set[int] = set()
    for section in elf.sections:
        if not (section.executable and section.in_file and section.allocated):
            continue
        for start in range(0, section.size, _WINDOW):
            overlap = _MAX_DISTANCE * 4
            code = np.frombuffer(
                bytes(elf.read(section.offset + start, min(_WINDOW + overlap, section.size - start))), dtype=np.uint8
            )
            at = section.address + start
            targets = _x86_64(code, at, got) if elf.machine is ElfMachine.X86_64 else _aarch64(code, at, wanted)
            for some in targets:
                named.update(map(int, some[np.isin(some, wanted)]))
    return named


def _x86_64(code: npt.NDArray[np.uint8], address: int, got: int | None) -> Iterator[_Words]:
    """Where `lea disp32(%rip)` leads, and `movabs` of a distance from the GOT; what only looks like one counts too."""
    if len(code) < 10:
        return
    at = np.flatnonzero((code[:-9] == 0x8D) & (code[1:-8] & 0xC7 == 0x05))
    yield address + at + 6 + _little(code, at + 2, 4).astype(np.int32).astype(np.int64)
    if got is not None:
        at = np.flatnonzero((code[:-9] & 0xFE == 0x48) & (code[1:-8] & 0xF8 == 0xB8))
        yield got + _little(code, at + 2, 8).astype(np.int64)


def _little(code: npt.NDArray[np.uint8], at: npt.NDArray[np.intp], size: int) -> npt.NDArray[np.uint64]:
    """The numbers at some places."""
    numbers = np.zeros(len(at), dtype=np.uint64)
    for step in range(size):
        numbers |= code[at + step].astype(np.uint64) << np.uint64(8 * step)
    return numbers


def _aarch64(code: npt.NDArray[np.uint8], address: int, wanted: _Words) -> Iterator[_Words]:
    """Where `adr` leads, and `adrp` with an `add` of the rest soon after it."""
    words = code[: len(code) // 4 * 4].view("<u4")
    relative = np.flatnonzero(words & 0x1F000000 == 0x10000000)
    found = words[relative]
    distance = ((found >> 5 & 0x7FFFF) << 2 | found >> 29 & 3).astype(np.int64)
    distance -= (distance >> 20) << 21
    own = address + relative * 4
    pages = found >> 31 == 1
    yield (own + distance)[~pages]
    page = (own // _PAGE + distance) * _PAGE
    for index in np.flatnonzero(pages & np.isin(page, wanted // _PAGE * _PAGE)):
        first = relative[index] + 1
        following = words[first : first + _MAX_DISTANCE]
        adds = following[(following & 0xFFC00000 == 0x91000000) & (following >> 5 & 31 == found[index] & 31)]
        yield page[index] + (adds >> 10 & 0xFFF).astype(np.int64)
