"""Proof, part three: every pointer leads to what it led to before.

A relocated pointer to the first byte of a container must lead to that container's first byte in the output. One
that stands beside a pointer to a container and leads behind it (a record's end) must lead as far behind it now.
All others must be what they were.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.instructions import got_address, movabs_immediates
from torchtailor.code.binary.source import Bytes
from torchtailor.code.gpucode.scan import LibraryCode
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.proof.pairs import ContainerPair

_MAX_GAP = 64
_ADDEND_FIELD = 16
_WINDOW = 4 << 20
_BLOCK = 1 << 10  # relocations that are looked at together: most often none of them changed
_INSTRUCTION = 10  # bytes of a movabs


class Moves:
    """Where each loaded container was and is."""

    def __init__(self, pairs: Sequence[ContainerPair]) -> None:
        self.to: dict[int, int] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        for pair in pairs:
            if pair.before.address is not None and pair.after.address is not None:
                self.to[pair.before.address] = pair.after.address
                sizes = (pair.before.container.stored_size, pair.after.container.stored_size)
                self.sizes[pair.before.address] = sizes

    def follows(self, old: int, new: int) -> bool:
        """Whether a pointer to `old` may be one to `new`: to the first byte of the same container."""
        return self.to.get(old) == new

    def is_end(self, old: int, new: int, begin: tuple[int, int]) -> bool:
        """Whether a pointer that led just behind the container at begin[0] leads so behind it at begin[1]."""
        if begin[0] == begin[1] and old == new and begin[0] < old:
            return True  # of an object that stayed where it is
        if not self.follows(*begin):
            return False
        before, after = self.sizes[begin[0]]
        gap = old - begin[0] - before
        return 0 <= gap < _MAX_GAP and new == begin[1] + after + gap


def check_pointers(
    before: ElfFile, after: ElfFile, old_code: LibraryCode, new_code: LibraryCode, pairs: Sequence[ContainerPair]
) -> list[int]:
    """Check all pointers; returns the addresses of the 8-byte words that were allowed to change."""
    moves = Moves(pairs)
    old, new = before.rela, after.rela
    if old.places != new.places or old.infos != new.infos or before.relr != after.relr:
        raise CheckFailedError("The output has other relocations than the input.")
    changed: list[int] = []
    pointed: set[int] = set()
    interesting = list(_interesting(old.addends, new.addends, moves))
    ends = [old.places[index] for index in interesting if not moves.follows(old.addends[index], new.addends[index])]
    index_at = {old.places[index]: index for index in old.placed_at({at + step for at in ends for step in (-8, 8)})}
    for index in interesting:
        pair = (old.addends[index], new.addends[index])
        if not old.is_relative(index):
            if pair[0] != pair[1]:
                raise CheckFailedError("A relocation of the output that names a symbol was changed.")
            continue
        place = old.places[index]
        if moves.follows(*pair):
            pointed.add(pair[0])
        else:
            beside = [
                (old.addends[other], new.addends[other])
                for other in (index_at.get(place - 8), index_at.get(place + 8))
                if other is not None and old.is_relative(other)
            ]
            _check_pointer(moves, place, pair, beside)
        if pair[0] != pair[1]:
            record = before.address_of(old.record_offset(index))
            if record is not None:
                changed.append(record + _ADDEND_FIELD)
            in_place = (before.pointer_at(place), after.pointer_at(place))
            if in_place == pair:
                changed.append(place)
    for place, target in _check_in_place(before, after, moves):
        changed.append(place)
        pointed.add(target)
    changed += _check_immediates(before, after, moves, pointed)
    _check_wrappers(old_code, new_code, moves)
    return sorted(changed)


def _interesting(old: array[int], new: array[int], moves: Moves) -> Iterator[int]:
    """Relocations that changed, or that lead to a container that moved."""
    moved = {start for start, now in moves.to.items() if start != now}
    for start in range(0, len(old), _BLOCK):
        was, is_now = old[start : start + _BLOCK], new[start : start + _BLOCK]
        if was == is_now and moved.isdisjoint(was):
            continue
        for index, (addend, now) in enumerate(zip(was, is_now, strict=True), start):
            if addend != now or addend in moved:
                yield index


def _check_pointer(moves: Moves, place: int, pair: tuple[int, int], beside: list[tuple[int, int]]) -> None:
    if moves.follows(*pair) or any(moves.is_end(*pair, begin) for begin in beside):
        return
    raise CheckFailedError(f"The pointer at {place:#x} led to {pair[0]:#x} and leads to {pair[1]:#x} in the output.")


def _check_in_place(before: ElfFile, after: ElfFile, moves: Moves) -> Iterator[tuple[int, int]]:
    """The pointers of RELR, which have no record but themselves."""
    places = set(before.relr)
    for place in before.relr:
        pair = (before.pointer_at(place) or 0, after.pointer_at(place) or 0)
        if pair[0] == pair[1] and moves.to.get(pair[0], pair[0]) == pair[0]:
            continue
        beside = [
            (before.pointer_at(other) or 0, after.pointer_at(other) or 0)
            for other in (place - 8, place + 8)
            if other in places
        ]
        _check_pointer(moves, place, pair, beside)
        if pair[0] != pair[1]:
            yield place, pair[0]


def _check_immediates(before: ElfFile, after: ElfFile, moves: Moves, pointed: set[int]) -> Iterator[int]:
    """Distances from the GOT inside code, if containers moved to which no relocated pointer leads."""
    got = got_address(before)
    moved = {start for start, now in moves.to.items() if start != now}
    lost = moved - pointed
    if not lost:
        return
    for address, old, new in _code(before, after) if got is not None else ():
        for place, distance in movabs_immediates(old, address, min(moved) - (got or 0), max(moved) - (got or 0)):
            if (got or 0) + distance not in moved:
                continue
            at = place - address
            now = int.from_bytes(new[at : at + 8], "little", signed=True)
            if not moves.follows((got or 0) + distance, (got or 0) + now):
                raise CheckFailedError(f"The code at {place:#x} of the output has lost its container.")
            lost.discard((got or 0) + distance)
            yield place
    if lost:
        raise CheckFailedError(f"Nothing leads to the container that was at {min(lost):#x} any more.")


def _code(before: ElfFile, after: ElfFile) -> Iterator[tuple[int, Bytes, Bytes]]:
    """All code, in windows that overlap by one instruction: address, bytes before, bytes after."""
    for section in before.sections:
        if not (section.executable and section.in_file and section.allocated):
            continue
        offset = after.offset_of(section.address)
        if offset is None:
            raise CheckFailedError(f"Section {section.name} is not in the output.")
        for start in range(0, section.size, _WINDOW):
            size = min(_WINDOW + _INSTRUCTION, section.size - start)
            old, new = before.read(section.offset + start, size), after.read(offset + start, size)
            yield section.address + start, old, new


def _check_wrappers(before: LibraryCode, after: LibraryCode, moves: Moves) -> None:
    """Each wrapper leads to the container it led to."""
    old = [(wrapper.address, moves.to.get(wrapper.container_address)) for wrapper in before.wrappers]
    new = [(wrapper.address, wrapper.container_address) for wrapper in after.wrappers]
    if old != new:
        raise CheckFailedError("A wrapper of the output does not lead to its container.")
