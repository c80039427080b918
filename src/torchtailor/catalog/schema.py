"""The shape of the TOML files: what is written in data, before it becomes domain types."""

from __future__ import annotations

from typing import Literal

import msgspec

Arch = Literal["x86_64", "aarch64"]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table in which a misspelt key is an error."""


class UnifiedRow(Strict, frozen=True):
    cuda: str
    capabilities: tuple[str, ...]
    condition: str


class GpuRow(Strict, frozen=True):
    capability: str
    family: str
    first_cuda: str
    hosts: tuple[Arch, ...]
    datacenter: tuple[str, ...] = ()
    workstation: tuple[str, ...] = ()
    consumer: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    last_cuda: str | None = None
    first_driver: str | None = None
    last_driver_branch: int | None = None
    tegra: bool = False
    offered: bool = True
    arch_specific: bool = False
    same_silicon: tuple[str, ...] = ()
    unified: UnifiedRow | None = None
    note: str = ""
    verified: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class IsaRow(Strict, frozen=True):
    name: str
    arch: Arch
    label: str
    requires: tuple[str, ...]
    compile_flags: tuple[str, ...]
    seed_flags: tuple[str, ...] = ()
    gcc_min: int = 0
    clang_min: int = 0
    workloads: tuple[str, ...] = ("general",)
    level: str = ""
    first: tuple[str, ...] = ()
    not_on: str = ""
    note: str = ""
    verified: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class MicroarchitectureRow(Strict, frozen=True):
    name: str
    arch: Arch
    flags: tuple[str, ...]
    status: str = ""
    sources: tuple[str, ...] = ()


class CpuNameRow(Strict, frozen=True):
    pattern: str
    microarchitecture: str
    label: str


class CudaRow(Strict, frozen=True):
    version: str
    toolkits: tuple[str, ...]
    architectures: tuple[str, ...]
    gcc_max: int
    clang_max: int
    driver_full: str
    driver_minor: str
    arch_specific: tuple[str, ...] = ()
    family_specific: tuple[str, ...] = ()
    ptx_isa: str = ""
    driver_updates: dict[str, str] = {}
    cudnn_of_torch: dict[str, tuple[str, ...]] = {}
    nccl_of_torch: dict[str, tuple[str, ...]] = {}
    note: str = ""
    verified: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class CudnnRow(Strict, frozen=True):
    version: str
    min_capability: str
    cuda_majors: tuple[int, ...]
    status: str = ""
    source: str = ""


class TritonRow(Strict, frozen=True):
    version: str
    ptxas: str
    knows_sm_121a: bool
    ptxas_blackwell: str | None = None
    status: str = ""
    source: str = ""


class VariantRow(Strict, frozen=True):
    """GPUs x ISAs of one build; without GPUs, CPU-only variants."""

    cpus: tuple[str, ...]
    gpus: tuple[str, ...] = ()


class BuildRow(Strict, frozen=True):
    rows: tuple[VariantRow, ...]
    cuda: str | None = None
    toolkit: str | None = None
    wheels: bool = True
    architectures: dict[Arch, str] = {}
    note: str = ""


class ReleaseRow(Strict, frozen=True):
    name: str
    version: str
    pythons: tuple[str, ...]
    build: tuple[BuildRow, ...]
    date: str = ""
    git_commit: str = ""
    default_index: dict[Arch, str] = {}
    triton: str = ""
    cudnn: str = ""
    nccl: str = ""
    cxx: int = 17
    gcc_min: int = 9
    nixpkgs: str | None = None
    note: str = ""
    verified: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class ExtraRow(Strict, frozen=True):
    """One row of a user's own: more variants of a release that exists."""

    release: str
    cpus: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    cuda: str | None = None


class TailorSettings(Strict, frozen=True):
    """The user's standing choices for cutting."""

    nvidia: bool = False


class GpusFile(Strict, frozen=True):
    checked: str
    sources: dict[str, str]
    families: dict[str, tuple[str, ...]]
    gpu: tuple[GpuRow, ...]


class CpusFile(Strict, frozen=True):
    checked: str
    sources: dict[str, str]
    isa: tuple[IsaRow, ...]
    microarchitecture: tuple[MicroarchitectureRow, ...]
    cpu_name: tuple[CpuNameRow, ...]


class CudaFile(Strict, frozen=True):
    checked: str
    never_released: tuple[str, ...]
    sources: dict[str, str]
    cuda: tuple[CudaRow, ...]
    cudnn: tuple[CudnnRow, ...]
    triton: tuple[TritonRow, ...]


class PytorchFile(Strict, frozen=True):
    checked: str
    wheel_index: str
    sources: dict[str, str]
    release: tuple[ReleaseRow, ...]


class UserFile(Strict, frozen=True):
    """`torchtailor.toml`: additions to the catalog, in the same tables, and settings."""

    gpu: tuple[GpuRow, ...] = ()
    isa: tuple[IsaRow, ...] = ()
    cuda: tuple[CudaRow, ...] = ()
    release: tuple[ReleaseRow, ...] = ()
    row: tuple[ExtraRow, ...] = ()
    families: dict[str, tuple[str, ...]] = {}
    wheel_index: str = ""
    tailor: TailorSettings = TailorSettings()
