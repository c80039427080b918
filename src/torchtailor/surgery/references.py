"""Every pointer to a container that can be rewritten, and so which containers can be moved.

Three kinds are known. A *wrapper*, or the array of a device link, holds a relocated pointer to the first byte.
A *record* of a resource table holds two relocated pointers: to the first byte, and to where the next object
begins; that of a bare cubin holds one and the size (`bare.py`). An *immediate* is the 64-bit distance from the GOT
that x86_64's medium code model loads with `movabs` (cuFFT names 23,000 containers so). A container all of whose
pointers are of these kinds can be moved; one that may be reached in another way (by distance, by a table of offsets, by
name) is pinned to its address.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Relocation, SectionType
from torchtailor.code.binary.instructions import got_address, lea_targets, movabs_immediates
from torchtailor.code.gpucode.fatbin import WrapperVersion
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, LARGE_DATA, FoundContainer, LibraryCode
from torchtailor.surgery.bare import recorded

_REX = rb"[\x48\x4c]"  # the byte before a `lea` of 64 bits
_WORTH_A_SEARCH = 1 << 20  # bytes of containers for which reading all host code is worth the time
_MAX_GAP = 64  # zeros between the end of a container and the next object of a resource table
_SYMTAB = 6
_SYMBOL_WORDS = 3  # 24 bytes; the value is the second word


class ContainerPointers(NamedTuple):
    """All pointers to one container that have to follow it when it moves."""

    to_start: tuple[Relocation, ...] = ()
    to_end: tuple[Relocation, ...] = ()  # of records: they point behind the container and its `gap`
    gap: int = 0  # zeros behind the container that belong to it
    immediates: tuple[int, ...] = ()  # addresses of 8-byte immediates that hold "address minus GOT"


@dataclass(frozen=True)
class Spans:
    """The address ranges of all loaded containers, to find the container at an address."""

    starts: list[int]
    ends: list[int]
    known: frozenset[int] = field(repr=False)

    @classmethod
    def of(cls, containers: Iterable[FoundContainer]) -> Spans:
        pairs = sorted(
            (found.address, found.address + found.container.stored_size)
            for found in containers
            if found.address is not None
        )
        starts = [start for start, _ in pairs]
        return cls(starts, [end for _, end in pairs], frozenset(starts))

    def inside(self, address: int) -> int | None:
        """The start of the container that has this address inside, beyond its first byte."""
        index = bisect_right(self.starts, address) - 1
        if index >= 0 and self.starts[index] < address < self.ends[index]:
            return self.starts[index]
        return None


_movable: WeakKeyDictionary[ElfFile, dict[int, ContainerPointers]] = WeakKeyDictionary()


def movable(elf: ElfFile, code: LibraryCode) -> dict[int, ContainerPointers]:
    """The containers that can be moved, by address, with the pointers that have to follow.

    It reads all host code, so what was found is kept for as long as the file is open: the next target asks again.
    """
    if elf not in _movable:
        _movable[elf] = _find_movable(elf, code)
    return _movable[elf]


def _find_movable(elf: ElfFile, code: LibraryCode) -> dict[int, ContainerPointers]:
    spans = Spans.of(code.containers)
    if not spans.starts:
        return {}
    pinned = _named(elf, spans)
    if pinned is None:
        return {}
    pinned |= _pointed_inside(elf, spans)
    pinned |= {wrapper.container_address for wrapper in code.wrappers if wrapper.container is None}
    found: dict[int, ContainerPointers] = {}
    bare = [container for container in code.containers if container.container.bare and container.loaded]
    if bare:
        found.update((one.address or 0, ContainerPointers(one.pointers)) for one in recorded(elf, bare))
    for section, containers in _by_section(code).items():
        if section in CONTAINER_SECTIONS:
            found.update(_wrapped(elf, code, containers))
        else:
            records = _recorded(elf, containers)
            found.update(records)
            if section in LARGE_DATA:
                rest = [container for container in containers if container.address not in records]
                found.update(_immediate(elf, rest, spans))
    return {address: pointers for address, pointers in found.items() if address not in pinned}


def _by_section(code: LibraryCode) -> dict[str, list[FoundContainer]]:
    sections: dict[str, list[FoundContainer]] = {}
    for found in code.containers:
        if found.address is not None and not found.container.bare:
            sections.setdefault(found.section, []).append(found)
    return sections


def _named(elf: ElfFile, spans: Spans) -> set[int] | None:
    """Containers that a dynamic symbol names, or lies in; None where the symbols cannot be listed."""
    table = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if table is None:
        return None if elf.dynamic_value(_SYMTAB) is not None else set()
    content = elf.content(table)
    words = memoryview(content)[: len(content) - len(content) % 24].cast("Q")
    named = set()
    low, high = spans.starts[0], spans.ends[-1]
    for value in words[1::_SYMBOL_WORDS]:
        if low <= value < high:
            start = value if value in spans.known else spans.inside(value)
            if start is not None:
                named.add(start)
    return named


def _pointed_inside(elf: ElfFile, spans: Spans) -> set[int]:
    """Containers into whose middle a relocated pointer leads."""
    table = elf.rela
    targets = {table.addends[index] for index in table.pointing_into(spans.starts[0], spans.ends[-1])}
    targets.update(elf.pointer_at(place) or 0 for place in elf.relr)
    inside = map(spans.inside, targets - spans.known)
    return {start for start in inside if start is not None}


def _wrapped(
    elf: ElfFile, code: LibraryCode, containers: list[FoundContainer]
) -> Iterator[tuple[int, ContainerPointers]]:
    """Containers that are reached through wrappers and the arrays of device links, and through nothing else."""
    places = {wrapper.container.place for wrapper in code.wrappers if wrapper.container}
    for wrapper in code.wrappers:
        if wrapper.wrapper.version is WrapperVersion.LINKED and wrapper.last:
            places |= _array(elf, wrapper.last.addend, {c.address for c in containers})
    for found in containers:
        if found.address is not None and found.pointers and all(p.place in places for p in found.pointers):
            yield found.address, ContainerPointers(found.pointers)


def _array(elf: ElfFile, address: int, targets: set[int | None]) -> set[int]:
    """The places of an array of pointers to containers, up to the first that points elsewhere."""
    places: set[int] = set()
    pointers = elf.relocations_in(address, address + 8 * len(targets))
    while (pointer := pointers.get(address)) and pointer.addend in targets:
        places.add(address)
        address += 8
    return places


def _recorded(elf: ElfFile, containers: list[FoundContainer]) -> dict[int, ContainerPointers]:
    """Containers that are reached through records, and through nothing else: all of a section, or none."""
    pointed = [found for found in containers if found.pointers]
    if not pointed:
        return {}
    places = [pointer.place for found in pointed for pointer in found.pointers]
    near = elf.relocations_in(min(places) - 8, max(places) + 16)
    for end_beside in (-8, 8):  # {end, begin} or {begin, end}
        records = {found.address: _record(elf, found, near, end_beside) for found in pointed}
        whole = {at: record for at, record in records.items() if at is not None and record is not None}
        if len(whole) == len(pointed):
            return whole
    return {}


def _record(
    elf: ElfFile, found: FoundContainer, near: Mapping[int, Relocation], end_beside: int
) -> ContainerPointers | None:
    """The record of a container, if each pointer to it is the begin of one or the end of its neighbour's."""
    start = found.address or 0
    end = start + found.container.stored_size
    begins: list[Relocation] = []
    ends: list[Relocation] = []
    for pointer in found.pointers:
        behind = near.get(pointer.place + end_beside)
        before = near.get(pointer.place - end_beside)
        if behind and end <= behind.addend < end + _MAX_GAP:
            begins.append(pointer)
            ends.append(behind)
        elif not (before and before.addend < start):
            return None
    if not begins or len({partner.addend for partner in ends}) != 1:
        return None
    gap = ends[0].addend - end
    at = elf.offset_of(end)
    if gap and (at is None or any(elf.read(at, gap))):
        return None
    return ContainerPointers(tuple(begins), tuple(ends), gap)


def _immediate(elf: ElfFile, containers: list[FoundContainer], spans: Spans) -> dict[int, ContainerPointers]:
    """Containers that host code reaches by 64-bit immediates (or through the GOT), and in no other way we know."""
    got = got_address(elf)
    if got is None or sum(found.container.stored_size for found in containers) < _WORTH_A_SEARCH:
        return {}
    places: dict[int, list[int]] = {}
    blocked: set[int] = set()
    for section in elf.sections:
        if not (section.executable and section.in_file and section.allocated):
            continue
        code = elf.content(section)
        low, high = spans.starts[0], spans.ends[-1]
        for place, distance in movabs_immediates(code, section.address, low - got, high - got):
            target = got + distance
            if target in spans.known:
                places.setdefault(target, []).append(place)
            elif (start := spans.inside(target)) is not None:
                blocked.add(start)
        for target in lea_targets(code, section.address, low, high, _REX):
            start = target if target in spans.known else spans.inside(target)
            if start is not None:
                blocked.add(start)
    if not places:
        return {}  # not this code model: a pointer in data says nothing about what code does
    return {
        found.address: ContainerPointers(found.pointers, immediates=tuple(places.get(found.address, ())))
        for found in containers
        if found.address is not None and found.address not in blocked and (found.pointers or found.address in places)
    }
