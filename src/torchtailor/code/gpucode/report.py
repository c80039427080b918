"""The GPU code of a library in numbers: small enough to cross processes, whole enough to answer for any GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchtailor.catalog.gpus import CodeKind, CodeTarget
from torchtailor.code.gpucode.fatbin import CONTAINER_HEADER, ArchKey, Compression, Image, Part
from torchtailor.code.gpucode.scan import (
    LARGE_DATA,
    RECORDED_SECTION,
    FoundContainer,
    LibraryCode,
    Reference,
    can_be_cut,
)

_KINDS = {CodeKind.CUBIN: "cubin", CodeKind.PTX: "ptx", CodeKind.LTOIR: "ltoir"}
_PAGES = 16 << 10  # bytes; of less no segment is split


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """All images of one architecture and kind."""

    label: str  # sm_90a, compute_120, lto_80, unknown (kind 16, 90)
    target: CodeTarget | None
    images: int
    stored: int
    raw: int
    compression: Mapping[str, int]  # images by how they are stored
    sections: Mapping[str, int]  # images by section
    other: str = ""  # of another maker than NVIDIA: hip, sycl

    @property
    def kind(self) -> str:
        return _KINDS[self.target.kind] if self.target else self.other or "unknown"

    @property
    def sort_key(self) -> tuple[int, str, int, str]:
        kinds = (CodeKind.CUBIN, CodeKind.PTX, CodeKind.LTOIR)
        if self.target is None:
            return (len(kinds), self.label, 0, "")
        return (kinds.index(self.target.kind), "", self.target.capability.number, self.target.suffix.value)


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """All containers of one section that are reached in one way and hold the same architectures."""

    section: str
    reference: Reference
    loaded: bool
    bare: bool  # cubins without a container around them
    containers: int
    stored: int
    bytes_by_target: Mapping[CodeTarget | None, int]
    images: tuple[Image, ...]  # of the first container: the others have the same architectures in the same order
    stored_by_image: tuple[int, ...]  # bytes of the images at each position, of all containers together
    recorded: bool = False  # the size of each bare cubin stands beside the pointers to it, so that it can move

    @property
    def can_be_cut(self) -> bool:
        return can_be_cut(self.bare, self.reference, self.loaded)

    @property
    def leaves_zeros(self) -> bool:
        """Whether what is cut out may stay in the file as zeros, as far as that is known without reading host code:
        nothing that can be rewritten leads to it, or it lies in pieces smaller than a page."""
        wrapped = self.reference in (Reference.WRAPPER, Reference.LINKED, Reference.PRELINKED)
        if wrapped or self.section in (*LARGE_DATA, RECORDED_SECTION):
            return False
        small = self.stored < self.containers * _PAGES
        return small or not self.recorded

    def size_with(self, kept: Iterable[Image]) -> int:
        """Bytes of all containers together with these images."""
        stay = set(map(id, kept))
        sizes = zip(self.images, self.stored_by_image, strict=True)
        size = sum(stored for image, stored in sizes if id(image) in stay)
        return size if self.bare and size else size + self.containers * CONTAINER_HEADER.size


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """The GPU code of one library in numbers."""

    name: str
    size: int
    machine: str
    device_linked: bool
    lookalikes: int
    soname: str
    architectures: tuple[ImageGroup, ...]
    container_groups: tuple[ContainerGroup, ...]
    texts: tuple[ImageGroup, ...] = ()  # PTX as text outside of containers, which is never cut
    moved: int = 0  # containers whose code was moved to packs
    hot: int = 0  # of a library that was cut to the pages that a program touched: bytes of those
    cold: int = 0  # bytes of its other pages, which are in a pack
    program: bool = False  # it asks for a loader
    not_cut: str = ""  # why it is never cut
    proprietary: bool = False  # it is NVIDIA's, and cut only with --nvidia

    @property
    def containers(self) -> int:
        return sum(group.containers for group in self.container_groups)

    @property
    def images(self) -> int:
        return sum(group.images for group in self.architectures)

    @property
    def stored(self) -> int:
        return sum(group.stored for group in self.container_groups)

    @property
    def raw(self) -> int:
        return sum(group.raw for group in self.architectures)

    @property
    def has_code(self) -> bool:
        return bool(self.container_groups)


class _Images:
    """Counts the images of one architecture."""

    __slots__ = ("compression", "first", "images", "raw", "sections", "stored")

    def __init__(self, first: Image | Part) -> None:
        self.first = first
        self.images = self.stored = self.raw = 0
        self.compression: dict[str, int] = {}
        self.sections: dict[str, int] = {}

    def add(self, section: str, stored: int, raw: int, compression: Compression) -> None:
        self.images += 1
        self.stored += stored
        self.raw += raw
        stored_as = compression._value_  # the slot: the property and the enum's hash cost more than all else
        self.compression[stored_as] = self.compression.get(stored_as, 0) + 1
        self.sections[section] = self.sections.get(section, 0) + 1

    def group(self) -> ImageGroup:
        first = self.first
        return ImageGroup(
            first.label, first.target, self.images, self.stored, self.raw, self.compression, self.sections
        )


class _Containers:
    """Counts the containers that are alike."""

    __slots__ = ("containers", "first", "sizes", "stored", "stored_by_image")

    def __init__(self, first: FoundContainer) -> None:
        self.first = first
        self.containers = self.stored = 0
        self.stored_by_image = [0] * len(first.images)
        self.sizes: dict[ArchKey, int] = {}


def _codes(image: Image) -> Iterator[tuple[Image | Part, int, int]]:
    """What an entry holds, with stored and raw size: itself, or its parts, which share its bytes by their size."""
    if not image.parts:
        yield image, image.stored_size, image.raw_size
        return
    rest, total = image.stored_size, sum(part.size for part in image.parts)
    for part in image.parts:
        share = rest * part.size // total if total else 0  # of what is left, so that nothing is lost in rounding
        yield part, share, part.size
        rest, total = rest - share, total - part.size


def summarise(name: str, code: LibraryCode) -> LibraryReport:
    """Count what a scan found."""
    images: dict[ArchKey, _Images] = {}
    alike: dict[tuple[object, ...], _Containers] = {}
    for found in code.containers:
        keys = tuple([image.arch_key for image in found.images])
        parts = tuple([part.arch_key for image in found.images for part in image.parts])
        key = (found.section, found.reference._value_, found.loaded, found.container.bare, found.recorded, keys, parts)
        counted = alike.get(key)
        if counted is None:
            counted = alike[key] = _Containers(found)
        counted.containers += 1
        counted.stored += found.container.stored_size
        for position, image in enumerate(found.images):
            counted.stored_by_image[position] += image.stored_size
            for held, stored, raw in _codes(image):
                arch = held.arch_key
                counted.sizes[arch] = counted.sizes.get(arch, 0) + stored
                group = images.get(arch)
                if group is None:
                    group = images[arch] = _Images(held)
                group.add(found.section, stored, raw, image.compression)
    groups = (group.group() for group in images.values())
    return LibraryReport(
        name=name,
        size=code.size,
        machine=code.machine.arch,
        device_linked=code.device_linked,
        lookalikes=len(code.lookalikes),
        soname=code.soname,
        moved=sum(bool(found.container.ticket) for found in code.containers),
        architectures=tuple(sorted(groups, key=lambda group: group.sort_key)),
        container_groups=tuple(
            ContainerGroup(
                counted.first.section,
                counted.first.reference,
                counted.first.loaded,
                counted.first.container.bare,
                counted.containers,
                counted.stored,
                {images[key].first.target: size for key, size in counted.sizes.items()},
                counted.first.images,
                tuple(counted.stored_by_image),
                counted.first.recorded,
            )
            for counted in alike.values()
        ),
        texts=merge_groups(
            ImageGroup(str(text.target), text.target, 1, text.size, text.size, {"text": 1}, {text.section: 1})
            for text in code.texts
        ),
    )


def group_images(images: Iterable[Image], section: str) -> tuple[ImageGroup, ...]:
    """Count images that lie in no library."""
    counted: dict[ArchKey, _Images] = {}
    for image in images:
        for held, stored, raw in _codes(image):
            counted.setdefault(held.arch_key, _Images(held)).add(section, stored, raw, image.compression)
    return tuple(sorted((one.group() for one in counted.values()), key=lambda group: group.sort_key))


def merge_groups(groups: Iterable[ImageGroup]) -> tuple[ImageGroup, ...]:
    """The same architecture of several libraries as one."""
    merged: dict[str, ImageGroup] = {}
    for group in groups:
        before = merged.get(group.label)
        if before is None:
            merged[group.label] = group
            continue
        merged[group.label] = ImageGroup(
            group.label,
            group.target,
            before.images + group.images,
            before.stored + group.stored,
            before.raw + group.raw,
            Counter(before.compression) + Counter(group.compression),
            Counter(before.sections) + Counter(group.sections),
            group.other,
        )
    return tuple(sorted(merged.values(), key=lambda group: group.sort_key))
