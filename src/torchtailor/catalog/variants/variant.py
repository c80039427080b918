"""A variant: one PyTorch for one GPU (or several of one machine), one CPU instruction set and one Python."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.releases import Build, Release


@dataclass(frozen=True)
class Variant:
    """One cell of the matrix."""

    release: Release
    build: Build
    gpu: Gpu | None
    isa: Isa
    python: str
    also: tuple[Gpu, ...] = ()  # the other GPUs of a machine, for which one official wheel is cut

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs that it is for."""
        return (self.gpu, *self.also) if self.gpu else ()

    @property
    def gpu_name(self) -> str:
        """`sm90`, `sm61_89`, `cpu`."""
        return "_".join([self.gpu.sm, *(str(gpu.capability.number) for gpu in self.also)]) if self.gpu else "cpu"

    @property
    def short_name(self) -> str:
        """`sm90-avx512`, `cpu-armv9`."""
        return f"{self.gpu_name}-{self.isa.name}"

    @property
    def release_name(self) -> str:
        """The release, as commands take it: `2.15`, `2.10`, `2.14.0`."""
        return self.release.name

    @property
    def name(self) -> str:
        """The seeds' name: `pytorch-python313-cuda13_0-sm90-avx512`; several releases may share it."""
        return f"pytorch-{self._rest}"

    @property
    def unique_name(self) -> str:
        """The name that carries the PyTorch version: `pytorch210-python313-cpu-avx2`."""
        return f"{self.release.tag}-{self._rest}"

    @property
    def any_python(self) -> str:
        """The same without its Python, for what all of them share: `pytorch210-cpu-avx2`."""
        return f"{self.release.tag}-{self._code}"

    @property
    def _rest(self) -> str:
        return f"python{self.python.replace('.', '')}-{self._code}"

    @property
    def _code(self) -> str:
        cuda = f"cuda{str(self.build.cuda).replace('.', '_')}-" if self.build.cuda else ""
        return f"{cuda}{self.short_name}"

    @property
    def arch(self) -> str:
        """The machine it runs on: `x86_64` or `aarch64`."""
        return self.isa.arch

    @property
    def platform(self) -> str:
        """Nix's name of the platform: `x86_64-linux`."""
        return f"{self.arch}-linux"

    def __str__(self) -> str:
        return self.unique_name
