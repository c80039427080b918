"""The instructions of a library: as one hash (two libraries with the same one do the same on every CPU), and the
addresses that they compute, found by pattern in all code of a file: no disassembly, so it may find more."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from struct import Struct, unpack_from

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine

_PLTGOT = 3
_DISTANCE = Struct("<i")
_WINDOW = 8 << 20  # bytes of code looked at at a time
_PAGE = 1 << 12
_MAX_DISTANCE = 16  # instructions between the two halves of an address
_OVERLAP = _MAX_DISTANCE * 4

_LEA = rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
_MOVABS = rb"[\x48\x49][\xb8-\xbf]"
_MOST_TOPS = 8  # upper halves of immediates that are searched for one by one
_ADR_OR_ADRP = re.compile(rb"[\x10\x30\x50\x70\x90\xb0\xd0\xf0]")  # the last byte of the word
_ADRP = 0x80000000


def got_address(elf: ElfFile) -> int | None:
    """The address from which the medium code model counts."""
    return elf.dynamic_value(_PLTGOT) if elf.machine is ElfMachine.X86_64 else None


def movabs_immediates(
    code: bytes | bytearray | memoryview, address: int, low: int, high: int
) -> Iterator[tuple[int, int]]:
    """(address of the immediate, its value) of all that looks like `movabs $imm64, %reg` of a value in [low, high]."""
    for pattern, behind in _movabs(low >> 32, high >> 32):
        match = pattern.search(code)
        while match:
            at = match.start() - behind
            if at + 10 <= len(code):
                value = unpack_from("<q", code, at + 2)[0]
                if low <= value <= high:
                    yield address + at + 2, value
            match = pattern.search(code, match.start() + 1)  # a second one may begin in what seems to be the first


def lea_targets(
    code: bytes | bytearray | memoryview, address: int, low: int, high: int, prefix: bytes = b""
) -> Iterator[int]:
    """Addresses in [low, high] to which something that looks like `lea disp32(%rip), %reg` leads; `prefix` is a pattern
    of one byte that has to stand before it."""
    length = 6 + bool(prefix)
    base, last, at_field = address + length, len(code) - length, length - 4
    nearest, farthest = low - base - len(code), high - base
    if farthest < -(1 << 31) or nearest >= 1 << 31:
        return
    tops = (max(nearest, -(1 << 31)) >> 24, min(farthest, (1 << 31) - 1) >> 24)
    distance = _DISTANCE.unpack_from
    for found in _lea(prefix, *tops).finditer(code):
        at = found.start()
        if at <= last and low <= (target := base + at + distance(code, at + at_field)[0]) <= high:
            yield target


@lru_cache(maxsize=64)
def _movabs(low: int, high: int) -> list[tuple[re.Pattern[bytes], int]]:
    """Patterns for a `movabs` whose immediate has an upper half between these, and how far behind its first byte each
    begins: the opcode is everywhere, so where the upper halves are few, those are searched for."""
    if high - low >= _MOST_TOPS:
        return [(re.compile(_MOVABS), 0)]
    tops = ((top & 0xFFFF_FFFF).to_bytes(4, "little") for top in range(low, high + 1))
    return [(re.compile(re.escape(top) + rb"(?<=" + _MOVABS + rb".{8})", re.DOTALL), 6) for top in tops]


@lru_cache(maxsize=64)
def _lea(prefix: bytes, low: int, high: int) -> re.Pattern[bytes]:
    """A `lea` whose distance has an upper byte between these."""
    tops = b"".join(re.escape(bytes([top & 0xFF])) for top in range(low, high + 1))
    return re.compile(prefix + _LEA + rb"(?=.{3}[" + tops + rb"])", re.DOTALL)


def named_by_code(elf: ElfFile, addresses: Collection[int]) -> set[int]:
    """Those of the addresses that instructions compute: relative to themselves, or to the GOT."""
    got = got_address(elf)
    wanted = frozenset(addresses)
    pages = frozenset(address // _PAGE for address in wanted)
    named: set[int] = set()
    for code, at in _all_code(elf) if wanted else ():
        if elf.machine is ElfMachine.X86_64:
            named.update(wanted.intersection(_x86_64(code, at, got, min(wanted), max(wanted))))
        else:
            named.update(wanted.intersection(_aarch64(code, at, pages)))
    return named


def code_leads_into(elf: ElfFile, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether instructions compute an address in one of the ranges."""
    got = got_address(elf)
    low, high = min(start for start, _ in spans), max(end for _, end in spans) - 1
    pages = frozenset(page for start, end in spans for page in range(start // _PAGE, (end - 1) // _PAGE + 1))
    for code, at in _all_code(elf):
        x86_64 = elf.machine is ElfMachine.X86_64
        targets = _x86_64(code, at, got, low, high) if x86_64 else _aarch64(code, at, pages)
        if any(start <= target < end for target in targets for start, end in spans):
            return True
    return False


def _all_code(elf: ElfFile) -> Iterator[tuple[bytes, int]]:
    """All instructions in windows that overlap a little, each with its address."""
    for section in elf.sections:
        if section.executable and section.in_file and section.allocated:
            for start in range(0, section.size, _WINDOW):
                size = min(_WINDOW + _OVERLAP, section.size - start)
                yield bytes(elf.read(section.offset + start, size)), section.address + start


def _x86_64(code: bytes, address: int, got: int | None, low: int, high: int) -> Iterator[int]:
    """Where `lea disp32(%rip)` leads, and `movabs` of a distance from the GOT; what only looks like one counts too."""
    yield from lea_targets(code, address, low, high)
    if got is not None:
        yield from (got + far for _, far in movabs_immediates(code, address, low - got, high - got))


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
