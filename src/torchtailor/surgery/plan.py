"""What the surgery will do: for each container, what stays of it and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from torchtailor.binary.elf import ElfFile
from torchtailor.gpucode.fatbin import CONTAINER_HEADER, Image
from torchtailor.gpucode.kernels import kernel_names
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.scan import CONTAINER_SECTIONS, FoundContainer, LibraryCode, Reference
from torchtailor.surgery.image_cache import Replacement
from torchtailor.surgery.layout import Item, Span, common_alignment, merge, pack, subtract
from torchtailor.surgery.references import Pointers, movable

_MAX_PADDING = 64


@dataclass(frozen=True, slots=True)
class NewImage:
    """A kept image, and its bytes where they are not copied from the input."""

    image: Image
    replacement: Replacement | None = None

    @property
    def size(self) -> int:
        return self.replacement.size if self.replacement else self.image.stored_size


@dataclass(frozen=True, slots=True)
class Cut:
    """What becomes of one container."""

    found: FoundContainer
    images: tuple[NewImage, ...]
    pointers: Pointers | None  # None where it is pinned to its place
    address: int | None  # in the output; None where it is not loaded
    size: int  # bytes of the container in the output

    def at(self, address: int) -> Cut:
        """The same at another place."""
        return Cut(self.found, self.images, self.pointers, address, self.size)

    @property
    def gap(self) -> int:
        """Zeros that follow the container and belong to it."""
        return self.pointers.gap if self.pointers else 0

    @property
    def whole(self) -> bool:
        """Whether nothing was cut from it, so that it is copied as it is."""
        return self.size == self.found.container.stored_size and all(image.replacement is None for image in self.images)


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of all containers, and which addresses are free then."""

    cuts: tuple[Cut, ...]
    free: tuple[Span, ...]


Keep = Mapping[int, tuple[Image, ...]]  # by the offset of the container


def choose_images(elf: ElfFile, code: LibraryCode, policy: Policy) -> dict[int, tuple[Image, ...]]:
    """The images to keep of each container, by its offset."""

    def kernels(image: Image) -> frozenset[str] | None:
        return kernel_names(elf.source, image)

    kept: dict[int, tuple[Image, ...]] = {}
    for found in code.containers:
        if found.reference is Reference.PRELINKED and code.device_linked:
            kept[found.container.offset] = ()  # the device link is done: what went into it is not used
        else:
            kept[found.container.offset] = policy.keep(found.images, kernels)
    return kept


def make_plan(elf: ElfFile, code: LibraryCode, keep: Keep, new: Mapping[int, Replacement]) -> Plan:
    """Find every kept container its place; `new` are images that are stored anew, by their offset."""
    pointers = movable(elf, code)
    cuts: list[Cut] = []
    free: list[Span] = []
    loaded: dict[str, list[Cut]] = {}
    for found in code.containers:
        if found.address is None:  # not loaded, so nothing reads it and nothing is gained by a cut
            images = tuple(map(NewImage, found.images))
            cuts.append(Cut(found, images, None, None, found.container.stored_size))
            continue
        images = tuple(NewImage(image, new.get(image.offset)) for image in keep[found.container.offset])
        size = CONTAINER_HEADER.size + sum([image.size for image in images])
        cut = Cut(found, images, pointers.get(found.address), found.address, size)
        loaded.setdefault(found.section, []).append(cut)
    for name, drafts in loaded.items():
        placed, left = _place(elf, name, drafts)
        cuts += placed
        free += left
    return Plan(tuple(sorted(cuts, key=lambda cut: cut.found.container.offset)), tuple(merge(free)))


def _place(elf: ElfFile, name: str, drafts: list[Cut]) -> tuple[list[Cut], list[Span]]:
    """Pack the containers of one section; also what addresses they no longer need."""
    drafts = sorted(drafts, key=lambda cut: cut.found.address or 0)
    items = [_item(draft) for draft in drafts]
    if name in CONTAINER_SECTIONS:
        room = merge(Span(s.address, s.memory_end) for s in elf.sections if s.name == name and s.allocated)
    else:
        room = _room_among_others(elf, drafts, items)
    addresses = pack(items, room)
    placed = [draft.at(address) for draft, address in zip(drafts, addresses, strict=True)]
    taken = [Span(at, at + item.new_size) for item, at in zip(items, addresses, strict=True)]
    return placed, subtract(room, taken)


def _item(cut: Cut) -> Item:
    old = cut.found.container.stored_size + cut.gap
    return Item(cut.found.address or 0, old, cut.size + cut.gap, cut.pointers is not None)


def _room_among_others(elf: ElfFile, drafts: list[Cut], items: list[Item]) -> list[Span]:
    """The addresses of containers that lie among other data, and the padding the compiler put between two."""
    alignment = min(common_alignment(item.address for item in items), _MAX_PADDING)
    spans = [Span(item.address, item.address + item.old_size) for item in items]
    padding = []
    for draft, (before, after) in zip(drafts, pairwise(spans), strict=False):
        size = after.start - before.end
        if 0 < size < alignment and not any(elf.read(draft.found.container.end + draft.gap, size)):
            padding.append(Span(before.end, after.start))
    return merge([*spans, *padding])
