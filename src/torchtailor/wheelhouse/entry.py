"""What a wheelhouse is made of: its description and its wheels, each with what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from torchtailor.catalog.variants.variant import Variant
from torchtailor.trees.wheels.name import WheelName


class WheelStep(Enum):
    """What was done to a wheel."""

    CUT = "cut"
    UNCHANGED = "unchanged"
    BUILT = "built"
    PACKS = "packs"  # made beside a wheel that was split: the packs for one GPU


@dataclass(frozen=True, slots=True)
class StockWheel:
    """An official wheel on disk."""

    path: Path
    filename: str
    sha256: str
    size: int
    url: str = ""  # empty where it is a path of this machine


@dataclass(frozen=True)
class WheelhouseEntry:
    """A wheel for a wheelhouse: the file, what was done to it, and the official wheel it was made of, if any."""

    path: Path
    filename: str
    sha256: str
    step: WheelStep
    required_by: tuple[str, ...] = ()
    stock: StockWheel | None = None
    libraries: tuple[Mapping[str, object], ...] = ()  # what was cut
    why: str = ""  # why it was not cut

    @property
    def name(self) -> WheelName:
        return WheelName.parse(Path(self.filename))

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def input_size(self) -> int:
        if self.step is WheelStep.PACKS:  # part of what the other wheel was made of
            return 0
        return self.stock.size if self.stock else self.size


@dataclass(frozen=True)
class WheelhouseDescription:
    """What a wheelhouse is for and how it was made, in plain values that can be sent to another machine."""

    variant: str
    gpu: str | None
    isa: str
    arch: str
    python: str
    pytorch: str
    build: str
    release: str
    method: str
    requested: tuple[str, ...] = ("torch",)  # the packages that an installer is asked for
    details: dict[str, Any] = field(default_factory=dict)  # of the build method, for the manifest

    @classmethod
    def of(
        cls,
        variant: Variant,
        method: str,
        details: dict[str, Any],
        *,
        pytorch: str | None = None,
        build: str | None = None,
        requested: tuple[str, ...] = ("torch",),
    ) -> WheelhouseDescription:
        return cls(
            variant=variant.unique_name,
            gpu=",".join(str(gpu.capability) for gpu in variant.gpus) or None,
            isa=variant.isa.name,
            arch=variant.arch,
            python=variant.python,
            pytorch=pytorch or str(variant.release.version),
            build=build or variant.build.label,
            release=variant.release_name,
            method=method,
            requested=requested,
            details=details,
        )
