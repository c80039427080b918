"""The plan of a cut: for each container, what stays of it and where it goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.gpucode.fatbin import CONTAINER_HEADER, TICKET, Image
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, FoundContainer, LibraryCode
from torchtailor.surgery.image_cache import Replacement
from torchtailor.surgery.layout import PackingItem, Span, as_span, common_alignment, merge, pack, subtract
from torchtailor.surgery.references import ContainerPointers, movable

_MAX_PADDING = 64


class NewImage(NamedTuple):
    """A kept image, and its bytes where they are not copied from the input."""

    image: Image
    replacement: Replacement | None = None

    @property
    def size(self) -> int:
        return self.replacement.size if self.replacement else self.image.stored_size


class ContainerPlan(NamedTuple):  # there are tens of thousands
    """What stays of one container, and where it goes."""

    found: FoundContainer
    images: tuple[NewImage, ...]
    pointers: ContainerPointers | None  # None where it is pinned to its place
    address: int | None  # in the output; None where it is not loaded
    size: int  # bytes of the container in the output
    extent: int  # bytes that were readable from its first on: its own, and of one that was cut before the zeros behind
    key: bytes = b""  # by which a pack has what is kept of it, where it was moved to one

    def at(self, address: int) -> ContainerPlan:
        """The same at another place."""
        return self if address == self.address else self._replace(address=address)

    @property
    def reach(self) -> Span:
        """The addresses that host code may read: where a pointer does not say how long it is, all the old length.

        The records of bare cubins keep the old size beside the pointer.
        """
        start = self.address or 0
        measured = self.pointers is not None and not self.pointers.immediates and not self.found.container.bare
        size = self.size + self.gap if measured else max(self.size, self.extent)
        return as_span((start, start + size))

    @property
    def gap(self) -> int:
        """Zeros that follow the container and belong to it."""
        return self.pointers.gap if self.pointers else 0

    @property
    def whole(self) -> bool:
        """Whether nothing was cut from it, so that it is copied unchanged."""
        return self.size == self.found.container.stored_size and all(image.replacement is None for image in self.images)


@dataclass(frozen=True)
class LibraryPlan:
    """The plan of each container, and which addresses are free then."""

    containers: tuple[ContainerPlan, ...]
    free: tuple[Span, ...]

    @cached_property
    def unreachable(self) -> list[Span]:
        """The free addresses that nothing may read any more, so that they need not stay mapped."""
        return subtract(
            self.free, merge(container.reach for container in self.containers if container.address is not None)
        )

    @property
    def mapped(self) -> int:
        """Bytes of removed code that have to stay mapped."""
        return sum(span.size for span in self.free) - sum(span.size for span in self.unreachable)


KeptImages = Mapping[int, tuple[Image, ...]]  # by the offset of the container


def make_plan(
    elf: ElfFile,
    code: LibraryCode,
    keep: KeptImages,
    new: Mapping[int, Replacement],
    moved: Mapping[int, bytes] | None = None,
) -> LibraryPlan:
    """Place every container; `new` are images that are recompressed, by their offset, and `moved` the keys of
    containers that go to a pack, by theirs."""
    pointers = movable(elf, code)
    plans: list[ContainerPlan] = []
    free: list[Span] = []
    loaded: dict[str, list[ContainerPlan]] = {}
    for found in code.containers:
        if found.address is None:
            images = tuple(map(NewImage, found.images))
            plans.append(ContainerPlan(found, images, None, None, found.container.stored_size, 0))
            continue
        extent = found.container.stored_size
        if key := (moved or {}).get(found.container.offset, found.container.ticket):
            images, size = (), CONTAINER_HEADER.size + TICKET.size
        else:
            images = tuple(NewImage(image, new.get(image.offset)) for image in keep[found.container.offset])
            size = found.container.size_with(sum([image.size for image in images]))
        draft = ContainerPlan(found, images, pointers.get(found.address), found.address, size, extent, key)
        loaded.setdefault(found.section, []).append(draft)
    for name, drafts in loaded.items():
        placed, left = _place(elf, name, drafts)
        plans += placed
        free += left
    return LibraryPlan(tuple(sorted(plans, key=lambda plan: plan.found.container.offset)), tuple(merge(free)))


def _place(elf: ElfFile, name: str, drafts: list[ContainerPlan]) -> tuple[list[ContainerPlan], list[Span]]:
    """Pack the containers of one section; also what addresses they no longer need."""
    drafts = sorted(drafts, key=lambda draft: draft.found.address or 0)
    items = [_item(draft) for draft in drafts]
    if name in CONTAINER_SECTIONS:
        room = merge(Span(s.address, s.memory_end) for s in elf.sections if s.name == name and s.allocated)
        drafts = list(_extended(drafts, room))
    else:
        room = _room_among_others(elf, drafts, items)
    addresses = pack(items, room)
    placed = [draft.at(address) for draft, address in zip(drafts, addresses, strict=True)]
    taken = [as_span((at, at + item.new_size)) for item, at in zip(items, addresses, strict=True)]
    return placed, subtract(room, taken)


def _extended(drafts: list[ContainerPlan], room: list[Span]) -> Iterator[ContainerPlan]:
    """In a section of nothing but containers, one that is pinned reaches to the next: it may have been cut before."""
    starts = [draft.found.address or 0 for draft in drafts]
    for index, draft in enumerate(drafts):
        if draft.pointers is not None:
            yield draft
            continue
        start = starts[index]
        end = next(span.end for span in room if span.start <= start < span.end)
        yield draft._replace(extent=max(draft.extent, min([end, *starts[index + 1 : index + 2]]) - start))


def _item(draft: ContainerPlan) -> PackingItem:
    old = draft.found.container.stored_size + draft.gap
    return PackingItem(draft.found.address or 0, old, draft.size + draft.gap, draft.pointers is not None)


def _room_among_others(elf: ElfFile, drafts: list[ContainerPlan], items: list[PackingItem]) -> list[Span]:
    """The addresses of containers that lie among other data, and the padding the compiler put between two."""
    alignment = min(common_alignment(item.address for item in items), _MAX_PADDING)
    spans = [as_span((item.address, item.address + item.old_size)) for item in items]
    padding = []
    for draft, (before, after) in zip(drafts, pairwise(spans), strict=False):
        size = after.start - before.end
        if 0 < size < alignment and not any(elf.read(draft.found.container.end + draft.gap, size)):
            padding.append(as_span((before.end, after.start)))
    return merge([*spans, *padding])
