"""Reads stock and output as the loader would, and compares them by what the linker in `libraries` knows."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.unit.surgery.libraries import PHDR, Linker, Recipe, byte_at, memory
from torchtailor.catalog import TorchArch, load_catalog
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryResult

EMPTY = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)  # what is left of a bare cubin
RULES = load_catalog().rules


def policy(targets: str, *, keep_ptx: bool = False, **rules: bool) -> Policy:
    return Policy(Targets(TorchArch.parse_list(targets), keep_ptx), RULES, **rules)


def options(targets: str = "9.0", *, keep_ptx: bool = False, strip: bool = True, **others: Any) -> Cut:
    return Cut(Targets(TorchArch.parse_list(targets), keep_ptx), strip=strip, rules=RULES, **others)


def tailor(
    folder: Path, recipe: Recipe, targets: str = "9.0", *, strip: bool = True, **others: Any
) -> tuple[Linker, bytes, bytes, LibraryResult]:
    """Link the recipe and tailor it; gives the linker, the stock bytes, the output (or stock) and the result."""
    linker = Linker(recipe)
    stock = linker.build()
    source, output = folder / "libtest.so", folder / "out" / "libtest.so"
    output.unlink(missing_ok=True)
    source.write_bytes(stock)
    result = tailor_library(source, output, options(targets, strip=strip, **others))
    assert source.read_bytes() == stock
    assert output.exists() is result.status.changed
    assert not list(output.parent.glob(".*")) if output.parent.exists() else True
    return linker, stock, output.read_bytes() if result.status.changed else stock, result


def containers_reached(linker: Linker, image: bytes) -> list[list[tuple[int, int, bytes]]]:
    """The entries (kind, sm, raw bytes of the entry) of each container, found through the pointers alone."""
    ranges = memory(image)
    found = []
    ends = {(section.name, at) for section, at in linker.records}
    ends |= {(section.name, at) for section, at, _ in linker.bare_pointers}
    for section, at, _, _ in linker.pointers:
        target = _pointer(image, ranges, section.address + at)
        if (section.name, at) not in ends and byte_at(ranges, target, 4) == struct.pack("<I", 0xBA55ED50):
            found.append(_entries(ranges, target))
    for section, at in linker.records:
        end, begin = (_pointer(image, ranges, section.address + at + step) for step in (0, 8))
        if byte_at(ranges, begin, 4) == struct.pack("<I", 0xBA55ED50):
            (size,) = struct.unpack("<Q", byte_at(ranges, begin + 8, 8))
            assert end - begin == 16 + size + 8
    got = _dynamic(image, ranges)[3]
    text = next(s for s in linker.sections if s.name == ".text")
    for at, _ in linker.immediates:
        (distance,) = struct.unpack("<q", byte_at(ranges, text.address + at, 8))
        found.append(_entries(ranges, got + distance))
    return found


def bare_reached(linker: Linker, image: bytes) -> list[tuple[int, bytes]]:
    """What each pointer to a bare cubin leads to, or what lies where code names it: which one, and the cubin as it is
    stored or an empty container."""
    ranges = memory(image)
    places = [(number, _pointer(image, ranges, home.address + at)) for home, at, number in linker.bare_pointers]
    places = places or [(number, home.address + at) for number, (home, at) in enumerate(linker.bare)]
    found = []
    for number, target in places:
        start = byte_at(ranges, target, len(EMPTY))
        found.append((number, start if start == EMPTY else byte_at(ranges, target, len(linker.r.bare[number]))))
    return found


def host_bytes(linker: Linker, image: bytes) -> dict[str, bytes]:
    """The bytes of all sections that hold no containers, as loaded."""
    ranges = memory(image)
    mixed = {".nv_fatbin", "__nv_relfatbin", ".cask_resource", ".ldata", ".rodata", ".rela.dyn", ".text"}
    mixed |= {".nvFatBinSegment", ".data"}
    return {
        section.name: byte_at(ranges, section.address, section.size)
        for section in linker.sections
        if section.address and section.name not in mixed
    }


def _pointer(image: bytes, ranges: dict[int, bytes], place: int) -> int:
    dynamic = _dynamic(image, ranges)
    table = byte_at(ranges, dynamic[7], dynamic[8])
    for at, info, addend in struct.iter_unpack("<QQq", table):
        if at == place and info in (8, 1027):
            return int(addend)
    return int(struct.unpack("<Q", byte_at(ranges, place, 8))[0])  # RELR


def _dynamic(image: bytes, ranges: dict[int, bytes]) -> dict[int, int]:
    (phoff,), (phnum,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    for index in range(phnum):
        kind, _, _, address, _, size, _, _ = PHDR.unpack_from(image, phoff + index * PHDR.size)
        if kind == 2:
            return dict(struct.iter_unpack("<qQ", byte_at(ranges, address, size)))
    raise AssertionError("no dynamic segment")


def _entries(ranges: dict[int, bytes], address: int) -> list[tuple[int, int, bytes]]:
    magic, _, header, size = struct.unpack("<IHHQ", byte_at(ranges, address, 16))
    assert magic == 0xBA55ED50
    body = byte_at(ranges, address + header, size)
    entries, at = [], 0
    while at < size:
        kind, _, length, padded = struct.unpack_from("<HHIQ", body, at)
        (sm,) = struct.unpack_from("<I", body, at + 28)
        entries.append((kind, sm, body[at : at + length + padded]))
        at += length + padded
    return entries
