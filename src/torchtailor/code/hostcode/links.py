"""Who refers to an address: calls, jumps and addresses taken in code, and pointers in data.

The first search is over raw bytes with array operations. It may see a reference where an instruction's middle looks
like one, so what matters is confirmed by decoding the function it was seen in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torchtailor.code.binary.elf_headers import ElfMachine, SectionType
from torchtailor.code.hostcode.image import RELA, SYMBOL, Addresses, CodeImage

_CHUNK = 16 << 20
_REL32 = 4


@dataclass(frozen=True, slots=True)
class CodePointers:
    """Pointers in data to functions of the library: their places, and their targets."""

    places: Addresses
    targets: Addresses


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Who calls whom, by numbers of functions; the calls of function i are callees[first[i]:first[i + 1]]."""

    first: npt.NDArray[np.int64]
    all_callees: npt.NDArray[np.int64]

    @classmethod
    def of(cls, callers: npt.NDArray[np.int64], callees: npt.NDArray[np.int64], count: int) -> CallGraph:
        known = (callers >= 0) & (callers != callees)
        edges = np.unique(callers[known] * count + callees[known])
        return cls(np.searchsorted(edges, np.arange(count + 1, dtype=np.int64) * count), edges % max(count, 1))

    def callees(self, function: int) -> list[int]:
        called: list[int] = self.all_callees[self.first[function] : self.first[function + 1]].tolist()
        return called


class Links:
    """References inside one library."""

    def __init__(self, image: CodeImage) -> None:
        self.image = image
        self._arm = image.machine is ElfMachine.AARCH64

    # -- data --------

    @cached_property
    def pointers(self) -> CodePointers:
        """All relocated pointers that lead into the library itself, by address or by an exported name."""
        image = self.image
        symbols = image.records(image.dynsym, SYMBOL)
        places, targets = [np.asarray(image.elf.relr, np.int64)], []
        targets.append(np.array([image.elf.pointer_at(int(place)) or 0 for place in places[0]], np.int64))
        for section in image.elf.sections:
            if section.type != SectionType.RELA or not section.allocated:
                continue
            records = image.records(section, RELA)
            named = (records["symbol"] > 0) & (records["symbol"] < len(symbols))
            defined = np.zeros(len(records), np.int64)
            owner = symbols[np.where(named, records["symbol"], 0)] if len(symbols) else None
            if owner is not None:
                defined = np.where(named & (owner["section"] != 0), owner["address"] + records["addend"], 0)
            relative = records["symbol"] == 0
            where = np.where(relative, records["addend"], defined)
            places.append(records["place"][where > 0])
            targets.append(where[where > 0])
        return CodePointers(np.concatenate(places), np.concatenate(targets))

    def pointers_to(self, addresses: Addresses) -> CodePointers:
        """The pointers that lead to exactly these addresses (sorted)."""
        hit = _among(self.pointers.targets, addresses)
        return CodePointers(self.pointers.places[hit], self.pointers.targets[hit])

    @cached_property
    def stubs(self) -> CodePointers:
        """The stubs of the PLT: where each stands, and the slot whose pointer it jumps to."""
        places, slots = [], []
        for section in self.image.elf.sections:
            if not (section.executable and section.in_file and section.name.startswith(".plt")):
                continue
            raw = self.image.data[section.offset : section.file_end]
            found = _arm_slots(raw, section.address) if self._arm else _x86_slots(raw, section.address)
            for place, slot in found:
                places.append(place)
                slots.append(slot)
        return CodePointers(np.array(places, np.int64), np.array(slots, np.int64))

    # -- code --------

    def code_to(self, starts: Addresses, ends: Addresses) -> list[tuple[int, int]]:
        """(address, target) of everything in code that seems to lead into one of the ranges (sorted, apart)."""
        found: list[tuple[int, int]] = []
        for section in self.image.code_sections:
            for low in range(section.address, section.memory_end, _CHUNK):
                # a few bytes more, so that no instruction is cut at the seam
                high = min(low + _CHUNK + 16, section.memory_end)
                raw = np.frombuffer(self.image.bytes_at(low, high), np.uint8)
                pairs = _arm_targets(raw, low) if self._arm else _x86_targets(raw, low)
                for places, targets in pairs:
                    index = np.searchsorted(starts, targets, side="right") - 1
                    hit = (index >= 0) & (targets < ends[np.maximum(index, 0)])
                    found += zip(places[hit].tolist(), targets[hit].tolist(), strict=True)
        return found

    def call_graph(self, through_stub: Mapping[int, int]) -> CallGraph:
        """All direct calls and jumps between functions, also through stubs of the PLT."""
        starts = self.image.functions.starts
        stubs = np.array(sorted(through_stub), np.int64)
        behind = np.array([through_stub[stub] for stub in stubs.tolist()], np.int64)
        callers, callees = [], []
        for section in self.image.code_sections:
            for low in range(section.address, section.memory_end, _CHUNK):
                high = min(low + _CHUNK + 16, section.memory_end)
                raw = np.frombuffer(self.image.bytes_at(low, high), np.uint8)
                pairs = _arm_calls(raw, low) if self._arm else _x86_calls(raw, low)
                for places, seen in pairs:
                    targets = seen.copy()
                    if len(stubs):
                        stub = _among(targets, stubs)
                        targets[stub] = behind[np.searchsorted(stubs, targets[stub])]
                    hit = _among(targets, starts)
                    callers.append(self.image.functions.indices_at(places[hit]))
                    callees.append(np.searchsorted(starts, targets[hit]))
        return CallGraph.of(np.concatenate(callers), np.concatenate(callees), len(starts))

    def called_by(self, function: int) -> set[int]:
        """Addresses a function calls, jumps to or takes, by decoding it."""
        functions = self.image.functions
        first, last = int(functions.starts[function]), int(functions.ends[function])
        code = self.image.bytes_at(first, last)
        if self._arm:
            raw = np.frombuffer(code, np.uint8)
            return {int(target) for _, targets in _arm_targets(raw, first) for target in targets.tolist()}
        from torchtailor.code.hostcode import x86

        return x86.references(code, first)


def _among(values: Addresses, wanted: Addresses) -> npt.NDArray[np.bool_]:
    if not len(wanted):
        return np.zeros(len(values), bool)
    index = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    hit: npt.NDArray[np.bool_] = wanted[index] == values
    return hit


def _x86_slots(raw: bytes, address: int) -> Iterator[tuple[int, int]]:
    position = raw.find(b"\xff\x25")  # jmp *slot(%rip)
    while position >= 0 and position + 6 <= len(raw):
        distance = int.from_bytes(raw[position + 2 : position + 6], "little", signed=True)
        # a stub may begin with ENDBR64 or BND; stubs are 16 or 8 bytes and aligned so
        yield address + position - position % 16, address + position + 6 + distance
        yield address + position - position % 8, address + position + 6 + distance
        position = raw.find(b"\xff\x25", position + 6)


def _arm_slots(raw: bytes, address: int) -> Iterator[tuple[int, int]]:
    words = np.frombuffer(raw[: len(raw) - len(raw) % 4], "<u4").astype(np.int64)
    for position in np.flatnonzero((words & 0x9F00001F) == 0x90000010).tolist():  # adrp x16
        if position + 1 >= len(words) or words[position + 1] & 0xFFC003FF != 0xF9400211:  # ldr x17, [x16, ...]
            continue
        page = _page(words[position : position + 1], np.array([address + position * 4]))[0]
        slot = int(page + ((words[position + 1] >> 10) & 0xFFF) * 8)
        yield address + position * 4, slot
        yield address + position * 4 - 4, slot  # a stub that begins with BTI


def _signed32(raw: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Addresses:
    value = np.zeros(len(at), np.uint32)
    for byte in range(_REL32):
        value |= raw[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return value.view(np.int32).astype(np.int64)


def _padded(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """With room after the end, so that the last bytes of a section can be looked at like all others."""
    return np.concatenate((raw, np.zeros(8, np.uint8)))


def _x86_calls(raw: npt.NDArray[np.uint8], address: int) -> Iterator[tuple[Addresses, Addresses]]:
    raw, body = _padded(raw), raw
    near = np.flatnonzero((body == 0xE8) | (body == 0xE9))
    yield near + address, near + (address + 5) + _signed32(raw, near + 1)
    two = np.flatnonzero((body == 0x0F) & ((raw[1 : len(body) + 1] & 0xF0) == 0x80))
    yield two + address, two + (address + 6) + _signed32(raw, two + 2)
    # short jumps: a function that ends in a call of its neighbour
    short = np.flatnonzero((body == 0xEB) | ((body & 0xF0) == 0x70))
    yield short + address, short + (address + 2) + raw[short + 1].view(np.int8).astype(np.int64)


def _x86_targets(raw: npt.NDArray[np.uint8], address: int) -> Iterator[tuple[Addresses, Addresses]]:
    yield from _x86_calls(raw, address)
    relative = np.flatnonzero((raw & 0xC7) == 0x05)  # ModRM of an operand relative to RIP
    raw = _padded(raw)
    yield relative + address, relative + (address + 5) + _signed32(raw, relative + 1)


def _arm_calls(raw: npt.NDArray[np.uint8], address: int) -> Iterator[tuple[Addresses, Addresses]]:
    words = raw[: len(raw) - len(raw) % 4].view("<u4").astype(np.int64)
    at = np.flatnonzero((words & 0x7C000000) == 0x14000000)  # B, BL
    yield at * 4 + address, at * 4 + address + (((words[at] & 0x3FFFFFF) ^ 0x2000000) - 0x2000000) * 4
    near = np.flatnonzero((words & 0xFF000010) == 0x54000000)  # B.cond
    yield near * 4 + address, near * 4 + address + ((((words[near] >> 5) & 0x7FFFF) ^ 0x40000) - 0x40000) * 4


def _arm_targets(raw: npt.NDArray[np.uint8], address: int) -> Iterator[tuple[Addresses, Addresses]]:
    yield from _arm_calls(raw, address)
    words = raw[: len(raw) - len(raw) % 4].view("<u4").astype(np.int64)
    pages = np.flatnonzero((words & 0x9F000000) == 0x90000000)  # ADRP, then ADD or LDR close by
    base = _page(words[pages], pages * 4 + address)
    register = words[pages] & 31
    for step in (1, 2, 3, 4):
        inside = pages + step < len(words)
        later = words[np.where(inside, pages + step, 0)]
        same = inside & (((later >> 5) & 31) == register)
        add = same & ((later & 0xFFC00000) == 0x91000000)
        yield pages[add] * 4 + address, base[add] + ((later[add] >> 10) & 0xFFF)
        for load, size in ((0xF9400000, 8), (0xB9400000, 4), (0x39400000, 1)):  # LDR of 64 and 32 bits, LDRB
            read = same & ((later & 0xFFC00000) == load)
            yield pages[read] * 4 + address, base[read] + ((later[read] >> 10) & 0xFFF) * size


def _page(words: Addresses, places: Addresses) -> Addresses:
    """The page that ADRP instructions at these places make."""
    value = ((words >> 29) & 3) | (((words >> 5) & 0x7FFFF) << 2)
    return (places & ~0xFFF) + ((value ^ 0x100000) - 0x100000) * 4096
