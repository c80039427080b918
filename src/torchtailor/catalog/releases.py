"""PyTorch releases, their builds, and the official wheels' contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from torchtailor.catalog.gpus import Capability, CodeTarget, TorchArch
from torchtailor.catalog.toolkits import Dotted

DEFAULT_PYTHON = "3.13"


class Method(Enum):
    """The three ways to make a variant."""

    WHEEL = "wheel"
    SOURCE = "source"
    NIX = "nix"


@dataclass(frozen=True, slots=True)
class VariantRow:
    """GPUs x ISAs; without GPUs, CPU-only variants."""

    gpus: tuple[Capability, ...]
    cpus: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """A release built with one CUDA, or without."""

    cuda: Dotted | None
    toolkit: Dotted | None
    wheels: bool
    architectures: Mapping[str, tuple[TorchArch, ...]]
    rows: tuple[VariantRow, ...]
    note: str = ""

    @property
    def label(self) -> str:
        """PyTorch's own label: `cu128`, `cpu`."""
        return "cpu" if self.cuda is None else "cu" + "".join(str(part) for part in self.cuda.parts[:2])

    def wheel_codes(self, arch: str) -> tuple[CodeTarget, ...]:
        """The GPU code inside the official wheel for a platform; empty where there is none."""
        if not self.wheels:
            return ()
        return tuple(code for item in self.architectures.get(arch, ()) for code in item.codes)


@dataclass(frozen=True)
class Release:
    """A PyTorch release as it is offered here."""

    name: str
    version: Dotted
    date: str
    git_commit: str
    pythons: tuple[str, ...]
    builds: tuple[Build, ...]
    default_index: Mapping[str, str]
    triton: str
    cudnn: str
    nccl: str
    cxx: int
    gcc_min: int
    nixpkgs: str | None
    note: str = ""
    sources: tuple[str, ...] = field(default=(), repr=False)

    @property
    def tag(self) -> str:
        """`pytorch210`, as the seeds' package names carry the version."""
        return "pytorch" + "".join(str(part) for part in self.version.parts[:2])

    @property
    def default_python(self) -> str:
        """The default Python, or the newest of a release that is not offered for it."""
        return DEFAULT_PYTHON if DEFAULT_PYTHON in self.pythons else self.pythons[-1]

    @property
    def cpu_build(self) -> Build | None:
        return next((build for build in self.builds if build.cuda is None), None)

    @property
    def cuda_builds(self) -> tuple[Build, ...]:
        return tuple(build for build in self.builds if build.cuda is not None)

    def build(self, label: str) -> Build | None:
        """The build with PyTorch's label (`cu128`, `cpu`)."""
        return next((build for build in self.builds if build.label == label), None)
