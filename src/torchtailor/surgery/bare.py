"""Which bare cubins can be moved: those that host code finds through records, and through nothing else.

A record is a relocated pointer to the first byte, with the stored size in one of the words beside it: host code that
reads both from there does not compute the address as well. Where code does name a cubin itself, by distance, the cubin
is pinned to its place.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.elf_headers import Relocation
from torchtailor.binary.instructions import named_by_code
from torchtailor.gpucode.scan import FoundContainer

_NEAR = 64  # bytes of a record on either side of its pointer


def recorded(elf: ElfFile, found: Iterable[FoundContainer]) -> Iterator[FoundContainer]:
    """The bare cubins of which every pointer is known and can follow."""
    candidates = [one for one in found if one.pointers and all(_is_record(elf, one, at) for at in one.pointers)]
    if candidates:
        named = named_by_code(elf, {one.address for one in candidates if one.address is not None})
        yield from (one for one in candidates if one.address not in named)


def _is_record(elf: ElfFile, found: FoundContainer, pointer: Relocation) -> bool:
    """Whether the stored size, in 32 or 64 bits, stands beside a pointer."""
    start = pointer.place - _NEAR
    offset = elf.offset_of(start)
    if offset is None or elf.offset_of(start + 2 * _NEAR - 1) != offset + 2 * _NEAR - 1:
        return False
    return found.container.stored_size in array("I", bytes(elf.read(offset, 2 * _NEAR)))
