"""What cutting an image gave: layer by layer, library by library, and what could still go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from torchtailor.core.documents import Bytes, Seconds, document, plain
from torchtailor.core.format import printable
from torchtailor.oci.compression import WrittenLayer
from torchtailor.surgery.cut_document import PolicyDocument, TargetDocument
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import BakedCaches
from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.manifest import LibraryDocument, StandInDocument, library_document
from torchtailor.tailoring.module_index import ModuleIndex
from torchtailor.tailoring.result import ChangedRequirements, GonePackages
from torchtailor.trees.artifact.drops import DroppedFile


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer, packed and unpacked, before and after; bytes."""

    number: int  # from 1
    digest_before: str
    size_before: int
    unpacked_before: int
    files: int
    created_by: str = ""
    digest_after: str | None = None  # None in a dry run, for a layer that would change
    size_after: int | None = None
    unpacked_after: int = 0
    shadowed: int = 0  # of files that a later layer replaces or deletes
    squashed: int = 0  # of these, what was dropped
    dropped: int = 0  # of files that rules leave out
    packing: str = ""

    @classmethod
    def of_packs(cls, number: int, written: WrittenLayer, made_by: str) -> LayerResult:
        """The new last layer, with the packs."""
        return cls(
            number, "", 0, 0, 0, made_by, written.digest, written.size, written.unpacked_size,
            packing=written.compression.value,
        )  # fmt: skip

    @property
    def changed(self) -> bool:
        return self.digest_after != self.digest_before


@dataclass(frozen=True, slots=True)
class ImageLibrary:
    """A library with GPU code, or one that could not be read, and the layer it is in."""

    layer: int
    result: LibraryResult
    shadowed: bool = False


@dataclass(frozen=True, slots=True)
class DoubledFile:
    """The same bytes in several layers."""

    path: str
    size: int
    layers: tuple[int, ...]

    @property
    def wasted(self) -> int:
        return self.size * (len(self.layers) - 1)


@dataclass(frozen=True)
class ImageResult:
    """One image of one platform."""

    platform: str
    digest_before: str
    digest_after: str | None
    layers: tuple[LayerResult, ...]
    libraries: tuple[ImageLibrary, ...]
    dropped_files: tuple[DroppedFile, ...] = ()
    gone_packages: tuple[str, ...] = ()  # that only a GPU needs
    stand_ins: tuple[GpuStandIn, ...] = ()  # for libraries of these
    changed_requirements: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    module_indexes: tuple[ModuleIndex, ...] = ()
    baked_caches: tuple[BakedCaches, ...] = ()
    droppable: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # by rule: files and bytes
    doubled: tuple[DoubledFile, ...] = ()  # the largest
    wasted: int = 0  # bytes of all that are in more than one layer
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[ImageLibrary, ...]:
        return tuple(library for library in self.libraries if library.result.status.changed)

    @property
    def differs(self) -> bool:
        return any(layer.changed for layer in self.layers)

    @property
    def size_before(self) -> int:
        return sum(layer.size_before for layer in self.layers)

    @property
    def size_after(self) -> int | None:
        sizes = [layer.size_after for layer in self.layers]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def unpacked_before(self) -> int:
        return sum(layer.unpacked_before for layer in self.layers)

    @property
    def unpacked_after(self) -> int:
        return sum(layer.unpacked_after for layer in self.layers)

    @property
    def shadowed(self) -> int:
        return sum(layer.shadowed for layer in self.layers)

    @property
    def could_save(self) -> int:
        """What --nvidia would save."""
        return sum(library.result.could_save for library in self.libraries)

    @property
    def useless_for_target(self) -> bool:
        """Whether there is GPU code, and none of it runs on the target."""
        with_code = [library.result for library in self.libraries if library.result.has_gpu_code]
        return bool(with_code) and all(one.status is LibraryStatus.NOTHING_FOR_TARGET for one in with_code)


@dataclass(frozen=True)
class ImageReport:
    """All images under one name."""

    source: str
    destination: str
    options: ImageOptions
    images: tuple[ImageResult, ...]
    digest: str | None  # of what the destination's name means now
    notes: tuple[str, ...]
    seconds: float

    @property
    def differs(self) -> bool:
        return any(image.differs for image in self.images)

    @property
    def document(self) -> ImageDocument:
        """What `image --json` prints."""
        return document(
            ImageDocument,
            self,
            dry_run=self.options.cut.dry_run,
            seconds=round(self.seconds, 3),
            **plain(self.options.document),
            images=[*map(_platform, self.images)],
        )


class ImageLayer(Struct):
    """One layer; sizes after are null where a dry run cannot know them."""

    number: Annotated[int, Meta(description="from 1")]
    created_by: Annotated[str, Meta(description="of the image's history")]
    packing: str = field(name="compression")
    files: int
    digest_before: Annotated[str, Meta(description="empty for a layer of packs, which is new")]
    digest_after: str | None
    size_before: Annotated[int, Meta(description="bytes, packed")]
    size_after: int | None
    unpacked_before: Bytes
    unpacked_after: Bytes
    shadowed: Annotated[int, Meta(description="bytes that a later layer replaces or deletes")]
    squashed: Annotated[int, Meta(description="of these, bytes that --squash-shadowed left out")]
    dropped: Annotated[int, Meta(description="bytes that rules left out")]


class ImageLibraryDocument(LibraryDocument, kw_only=True):
    """A library of an image."""

    layer: int
    shadowed: Annotated[bool, Meta(description="a later layer replaces or deletes it")] | UnsetType = UNSET


class DroppableFiles(Struct):
    """What a rule that was not chosen would leave out."""

    rule: str
    files: int
    size: Bytes


class PlatformImage(Struct):
    """The image of one platform."""

    platform: str
    digest_before: str
    digest_after: str | None
    size_before: Annotated[int, Meta(description="bytes of all layers, packed")]
    size_after: int | None
    unpacked_before: Bytes
    unpacked_after: Bytes
    shadowed: Annotated[int, Meta(description="bytes that a later layer replaces or deletes")]
    wasted: Annotated[int, Meta(description="bytes that are in more than one layer")] = field(name="doubled")
    could_save: Annotated[int, Meta(description="bytes that --nvidia would save")]
    notes: tuple[str, ...]
    layers: tuple[ImageLayer, ...]
    libraries: tuple[ImageLibraryDocument, ...]
    doubled: Annotated[tuple[DoubledFile, ...], Meta(description="the largest")] = field(name="doubled_files")
    dropped_files: tuple[DroppedFile, ...]
    droppable: tuple[DroppableFiles, ...]
    gone_packages: GonePackages = UNSET
    stand_ins: tuple[StandInDocument, ...] | UnsetType = UNSET
    module_indexes: tuple[ModuleIndex, ...] | UnsetType = UNSET
    baked_caches: tuple[BakedCaches, ...] | UnsetType = UNSET
    changed_requirements: ChangedRequirements = UNSET


class ImageDocument(Struct):
    """What was cut, image by image."""

    dry_run: bool
    seconds: Seconds
    target: TargetDocument
    policy: PolicyDocument
    squash_shadowed: bool
    cold: Annotated[str | None, Meta(description="of --cold; null where no packs are made")]
    compression: Annotated[str | None, Meta(description="of --compress")]
    source: str
    destination: str
    digest: Annotated[str | None, Meta(description="of what the destination's name means now")]
    notes: tuple[str, ...]
    images: tuple[PlatformImage, ...]


def _platform(image: ImageResult) -> PlatformImage:
    return document(
        PlatformImage,
        image,
        layers=[replace(layer, created_by=printable(layer.created_by)) for layer in image.layers],
        libraries=[*map(_library, image.libraries)],
        doubled=[replace(file, path=printable(file.path)) for file in image.doubled],
        dropped_files=[replace(file, path=printable(file.path)) for file in image.dropped_files],
        gone_packages=image.gone_packages or UNSET,
        stand_ins=image.stand_ins or UNSET,
        module_indexes=image.module_indexes or UNSET,
        baked_caches=image.baked_caches or UNSET,
        changed_requirements=image.changed_requirements or UNSET,
        droppable=[DroppableFiles(rule, files, size) for rule, (files, size) in image.droppable.items()],
    )


def _library(library: ImageLibrary) -> ImageLibraryDocument:
    said = structs.asdict(library_document(library.result)) | {"path": printable(library.result.path)}
    return ImageLibraryDocument(**said, layer=library.layer, shadowed=library.shadowed or UNSET)
