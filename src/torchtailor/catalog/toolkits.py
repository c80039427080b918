"""CUDA toolkits: what they compile for, and which drivers run what they made."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from msgspec import Meta

from torchtailor.catalog.gpus import Capability, CodeTarget, Gpu, Suffix
from torchtailor.catalog.schema import Dotted, Sourced, Strict


class DriverFit(Enum):
    """How a driver can run what a toolkit made."""

    FULL = "full"
    MINOR = "minor"  # cubins only: PTX made by this toolkit is refused
    TOO_OLD = "too old"
    DROPPED_GPU = "dropped"  # newer than the last branch that knows the GPU

    @property
    def runs(self) -> bool:
        return self in (DriverFit.FULL, DriverFit.MINOR)


Capabilities = frozenset[Capability]


class DriverBranch(Strict, frozen=True, kw_only=True):
    """A branch of NVIDIA's Linux driver, such as R570, and the drivers released from it."""

    branch: Annotated[int, Meta(description="Its number, the first part of its drivers' versions; the key of the row.")]
    first: Annotated[Dotted, Meta(description="The first driver released from it.")]
    newest: Annotated[Dotted, Meta(description="The newest driver known.")]
    cuda: Annotated[Dotted | None, Meta(description="The newest CUDA that it fully supports.")] = None
    status: Annotated[str, Meta(description="Whether the row is verified or believed.")] = ""
    sources: Annotated[tuple[str, ...], Meta(description="Where the facts come from: names in [sources].")] = ()


class CudaToolkit(Sourced, frozen=True, kw_only=True):
    """One CUDA release line, such as 12.8."""

    version: Annotated[Dotted, Meta(description="The release line: 12.8; the key of the row.")]
    toolkits: Annotated[tuple[Dotted, ...], Meta(description="Its releases: 12.8.0, 12.8.1.")]
    architectures: Annotated[Capabilities, Meta(description="The capabilities that its nvcc compiles for.")]
    gcc_max: Annotated[int, Meta(description="The newest GCC that its nvcc accepts.")]
    clang_max: Annotated[int, Meta(description="The newest clang that its nvcc accepts.")]
    driver_full: Annotated[Dotted, Meta(description="The oldest driver that runs all of its code, PTX included.")]
    driver_minor: Annotated[Dotted, Meta(description="The oldest driver that runs its cubins.")]
    arch_specific: Annotated[Capabilities, Meta(description="The capabilities it compiles `a` code for.")] = frozenset()
    family_specific: Annotated[Capabilities, Meta(description="The capabilities it compiles `f` code for.")] = (
        frozenset()
    )
    driver_updates: Annotated[
        Mapping[str, Dotted], Meta(description="The oldest driver of its later releases, where it differs.")
    ] = {}

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

    def drivers_for(self, gpu: Gpu | None, update: str | None = None, name: str = "") -> tuple[Dotted, Dotted]:
        """The oldest driver that runs its code on a GPU (one product of it) at all, and the oldest without limits."""
        first = (gpu and gpu.first_driver_of(name)) or self.driver_minor
        return max(self.driver_minor, first), max(self.driver_floor(update), first)

    def fit_driver(self, driver: Dotted, *, update: str | None = None) -> DriverFit:
        if driver >= self.driver_floor(update):
            return DriverFit.FULL
        return DriverFit.MINOR if driver >= self.driver_minor else DriverFit.TOO_OLD


class Cudnn(Strict, frozen=True, kw_only=True):
    """A cuDNN release and what it runs on."""

    version: Annotated[Dotted, Meta(description="The version from which this holds; the key of the row.")]
    min_capability: Annotated[Capability, Meta(description="The oldest capability that it supports.")]
    status: Annotated[str, Meta(description="Whether the row is verified or believed.")] = ""
    source: Annotated[str, Meta(description="Where the facts come from.")] = ""


class Triton(Strict, frozen=True, kw_only=True):
    """A Triton release and the ptxas in it."""

    version: Annotated[str, Meta(description="The version; the key of the row.")]
    ptxas: Annotated[str, Meta(description="The version of its ptxas.")]
    ptxas_blackwell: Annotated[str | None, Meta(description="Its second ptxas, for Blackwell.")] = None
    status: Annotated[str, Meta(description="Whether the row is verified or believed.")] = ""
    source: Annotated[str, Meta(description="Where the facts come from.")] = ""
