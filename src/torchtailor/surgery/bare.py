"""Which bare cubins can be moved: those that host code finds through records, and through nothing else.

A record is a relocated pointer to the first byte, with the stored size in one of the words beside it: host code that
reads both from there does not compute the address as well. Where code does name a cubin itself, by distance, the cubin
is pinned to its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.instructions import named_by_code
from torchtailor.code.gpucode.scan import FoundContainer


def recorded(elf: ElfFile, found: Iterable[FoundContainer]) -> Iterator[FoundContainer]:
    """The bare cubins of which every pointer is known and can follow."""
    candidates = [one for one in found if one.recorded]
    if candidates:
        named = named_by_code(elf, {candidate.address for candidate in candidates if candidate.address is not None})
        yield from (candidate for candidate in candidates if candidate.address not in named)
