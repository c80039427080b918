"""CUDA toolkits: what they compile for, and which drivers run what they made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import total_ordering

from torchtailor.catalog.gpus import Capability, CodeTarget, Gpu, Suffix


@total_ordering
@dataclass(frozen=True, eq=False)
class Dotted:
    """A version of dotted numbers, compared number by number: drivers, toolkits, libraries."""

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+(\.\d+)*", self.text):
            raise ValueError(f"{self.text!r} is not a version of dotted numbers")

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.text.split("."))

    @property
    def major(self) -> int:
        return self.parts[0]

    def _key(self) -> tuple[int, ...]:
        parts = list(self.parts)
        while parts and parts[-1] == 0:
            parts.pop()
        return tuple(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dotted) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Dotted) -> bool:
        return self._key() < other._key()

    def __str__(self) -> str:
        return self.text


class DriverFit(Enum):
    """How a driver can run what a toolkit made."""

    FULL = "full"
    MINOR = "minor"  # cubins only: PTX made by this toolkit is refused
    TOO_OLD = "too old"
    DROPPED_GPU = "dropped"  # newer than the last branch that knows the GPU

    @property
    def runs(self) -> bool:
        return self in (DriverFit.FULL, DriverFit.MINOR)


@dataclass(frozen=True)
class CudaToolkit:
    """One CUDA release line, such as 12.8."""

    version: Dotted
    updates: tuple[Dotted, ...]
    architectures: frozenset[Capability]
    arch_specific: frozenset[Capability]
    family_specific: frozenset[Capability]
    ptx_isa: str
    gcc_max: int
    clang_max: int
    driver_full: Dotted
    driver_updates: Mapping[str, Dotted]
    driver_minor: Dotted
    cudnn_of_torch: Mapping[str, tuple[str, ...]]
    nccl_of_torch: Mapping[str, tuple[str, ...]]
    note: str = ""
    sources: tuple[str, ...] = field(default=(), repr=False)

    def compiles(self, code: CodeTarget) -> bool:
        """Whether its nvcc makes code for this target."""
        known = {
            Suffix.NONE: self.architectures,
            Suffix.ARCH: self.arch_specific,
            Suffix.FAMILY: self.family_specific,
        }[code.suffix]
        return code.capability in known

    def driver_floor(self, update: str | None = None) -> Dotted:
        """The driver that runs everything made by this toolkit (or by one of its updates)."""
        return self.driver_updates.get(update or "", self.driver_full)

    def drivers_for(self, gpu: Gpu | None, update: str | None = None) -> tuple[Dotted, Dotted]:
        """The oldest driver that runs its code on a GPU at all, and the oldest that does so without limits."""
        first = Dotted(gpu.first_driver) if gpu and gpu.first_driver else self.driver_minor
        return max(self.driver_minor, first), max(self.driver_floor(update), first)

    def fit_driver(self, driver: Dotted, *, update: str | None = None) -> DriverFit:
        if driver >= self.driver_floor(update):
            return DriverFit.FULL
        return DriverFit.MINOR if driver >= self.driver_minor else DriverFit.TOO_OLD
