"""What cutting an image gave: layer by layer, library by library, and what could still go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtailor.artifact.drops import DroppedFile
from torchtailor.format import printable
from torchtailor.images.options import ImageOptions
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.manifest import dropped_json, library_json


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
    droppable: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by rule: files and bytes
    doubled: tuple[DoubledFile, ...] = ()  # the largest
    wasted: int = 0  # bytes of all that are in more than one layer
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[ImageLibrary, ...]:
        return tuple(one for one in self.libraries if one.result.status.changed)

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
        return sum(one.result.could_save for one in self.libraries)

    @property
    def useless_for_target(self) -> bool:
        """Whether there is GPU code, and none of it runs on the target."""
        with_code = [one.result for one in self.libraries if one.result.has_gpu_code]
        return bool(with_code) and all(one.status is LibraryStatus.NOTHING_FOR_TARGET for one in with_code)

    def to_json(self) -> dict[str, Any]:
        return {
            "platform": self.platform,
            "digest_before": self.digest_before,
            "digest_after": self.digest_after,
            "size_before": self.size_before,
            "size_after": self.size_after,
            "unpacked_before": self.unpacked_before,
            "unpacked_after": self.unpacked_after,
            "shadowed": self.shadowed,
            "doubled": self.wasted,
            "could_save": self.could_save,
            "notes": list(self.notes),
            "layers": [
                {
                    "number": layer.number,
                    "created_by": printable(layer.created_by),
                    "compression": layer.packing,
                    "files": layer.files,
                    "digest_before": layer.digest_before,
                    "digest_after": layer.digest_after,
                    "size_before": layer.size_before,
                    "size_after": layer.size_after,
                    "unpacked_before": layer.unpacked_before,
                    "unpacked_after": layer.unpacked_after,
                    "shadowed": layer.shadowed,
                    "squashed": layer.squashed,
                    "dropped": layer.dropped,
                }
                for layer in self.layers
            ],
            "libraries": [
                {**library_json(one.result), "path": printable(one.result.path), "layer": one.layer}
                | ({"shadowed": True} if one.shadowed else {})
                for one in self.libraries
            ],
            "doubled_files": [
                {"path": printable(file.path), "size": file.size, "layers": list(file.layers)} for file in self.doubled
            ],
            "dropped_files": [{**dropped_json(file), "path": printable(file.path)} for file in self.dropped_files],
            "droppable": [
                {"rule": rule, "files": files, "size": size} for rule, (files, size) in self.droppable.items()
            ],
        }


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

    def to_json(self) -> dict[str, Any]:
        """The document of `image --json`."""
        return {
            "dry_run": self.options.cut.dry_run,
            "seconds": round(self.seconds, 3),
            **self.options.to_json(),
            "source": self.source,
            "destination": self.destination,
            "digest": self.digest,
            "notes": list(self.notes),
            "images": [image.to_json() for image in self.images],
        }
