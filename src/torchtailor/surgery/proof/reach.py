"""Proof, part five: every address of a container that host code may read is still mapped.

The CUDA runtime reads a wrapped container as far as its header says, and code that has a record as far as that says.
Any other code may hold the length of the container itself, such as the `sizeof` of an embedded fatbin: for it as many
bytes must be mapped as there were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SYMBOL, Relocation, SectionType
from torchtailor.code.gpucode.fatbin import WrapperVersion
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, LibraryCode
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.layout import Span, merge, subtract
from torchtailor.surgery.proof.pairs import ContainerPair

_MAX_GAP = 64
_VALUE = 4  # of a symbol


def check_mapped(before: ElfFile, after: ElfFile, code: LibraryCode, pairs: Sequence[ContainerPair]) -> None:
    """Raise CheckFailedError if a container that something unknown may read is not mapped at its old length."""
    mapped = merge(Span(load.address, load.memory_end) for load in after.loads)
    loaded = [pair for pair in pairs if pair.before.address is not None]
    if not loaded:
        return
    starts = {pair.before.address or 0 for pair in loaded}
    last = max((pair.before.address or 0) + pair.before.container.stored_size for pair in loaded)
    pointers = before.pointers_into(min(starts), last)
    inside = sorted(set(pointers.values()) - starts | _symbols(before))
    wrapped = _wrapped(code, pointers, starts)
    beside = _beside(before, loaded)
    unsure = []
    for pair in loaded:
        start, size = pair.before.address or 0, pair.before.container.stored_size
        named = bisect_left(inside, start) < bisect_left(inside, start + size)
        if named or not _measured(pair, wrapped, beside):
            unsure.append(Span(pair.after.address or 0, (pair.after.address or 0) + size))
    for lost in subtract(merge(unsure), mapped):
        raise CheckFailedError(f"The output no longer maps {lost.start:#x}, which host code may read.")


def _measured(pair: ContainerPair, wrapped: set[int], beside: Mapping[int, Relocation]) -> bool:
    """Whether all that leads to a container is a wrapper or a record, whose readers know its new length."""
    places = [pointer.place for pointer in pair.before.pointers]
    if not places:
        return False
    if pair.before.section in CONTAINER_SECTIONS:
        return all(place in wrapped for place in places)
    start = pair.before.address or 0
    end = start + pair.before.container.stored_size
    begins = 0
    for place in places:
        neighbours = [beside[at].addend for at in (place - 8, place + 8) if at in beside]
        if any(end <= addend < end + _MAX_GAP for addend in neighbours):
            begins += 1
        elif not any(addend < start for addend in neighbours):  # nor is it the end of the record before
            return False
    return begins > 0


def _beside(elf: ElfFile, loaded: Sequence[ContainerPair]) -> Mapping[int, Relocation]:
    """The pointers around those that lead to a container among other data."""
    others = [pair.before for pair in loaded if pair.before.section not in CONTAINER_SECTIONS]
    places = [pointer.place for found in others for pointer in found.pointers]
    return elf.relocations_in(min(places) - 8, max(places) + 16) if places else {}


def _wrapped(code: LibraryCode, pointers: Mapping[int, int], starts: set[int]) -> set[int]:
    """The places of the pointers in wrappers, and in the arrays of device links."""
    places = {wrapper.container.place for wrapper in code.wrappers if wrapper.container}
    for wrapper in code.wrappers:
        if wrapper.wrapper.version is WrapperVersion.LINKED and wrapper.last:
            place = wrapper.last.addend
            while pointers.get(place) in starts:
                places.add(place)
                place += 8
    return places


def _symbols(elf: ElfFile) -> set[int]:
    table = next((section for section in elf.sections if section.type == SectionType.DYNSYM), None)
    if table is None:
        return set()
    content = elf.content(table)
    return {row[_VALUE] for row in SYMBOL.iter_unpack(content[: len(content) - len(content) % SYMBOL.size])}
