"""One recipe of PyTorch: the row that it calls the library with, and what its header tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from msgspec.structs import replace

from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import ImpossibleError
from torchtailor.nix.pins import KeptRow, NixpkgsRow, Pins, SourceRow, WithoutRow

GIGABYTES_PER_JOB = 4


class BlasChoice(Enum):
    """The BLAS library that PyTorch uses on the CPU."""

    OPENBLAS = "openblas"
    MKL = "mkl"


@dataclass(frozen=True)
class Blueprint:
    """One recipe of PyTorch."""

    catalog: Catalog
    pins: Pins
    variant: Variant
    blas: BlasChoice = BlasChoice.OPENBLAS
    nightly: SourceRow | None = None

    def __post_init__(self) -> None:
        if self.blas is BlasChoice.MKL and not can_use_mkl(self.variant):
            raise ImpossibleError(
                f"{self.variant.name} cannot use MKL, which is only for CPU-only x86_64 variants.",
                "Use OpenBLAS.",
            )

    @property
    def file_name(self) -> str:
        """The recipe's name, which is its file's: `pytorch-python313-cuda13_0-sm90-avx512`."""
        return self.variant.name + ("-nightly" if self.nightly else "")

    @property
    def pin(self) -> NixpkgsRow:
        """The release's nixpkgs, or the one that a migration kept, of which only PyTorch's version is assumed."""
        release = self.variant.release
        assert release.nixpkgs is not None
        row = self.pins.nixpkgs(release.nixpkgs)
        if not self.kept.nixpkgs:
            return row
        version = str(release.version)
        return replace(row, rev=self.kept.nixpkgs, sha256=self.kept.nixpkgs_sha256, torch=version, cuda={})

    @cached_property
    def upgrade(self) -> SourceRow | None:
        """PyTorch's source, if the pin has another version of PyTorch."""
        if self.nightly:
            return self.nightly
        version = str(self.variant.release.version)
        return None if version == self.pin.torch else self.pins.source(version)

    @property
    def version(self) -> str:
        return self.upgrade.version if self.upgrade else self.pin.torch

    @property
    def cuda(self) -> Dotted | None:
        return self.variant.build.cuda

    @property
    def expected_triton(self) -> str:
        """The Triton that this PyTorch expects, if the pin has another one."""
        expected = self.variant.release.triton
        return expected if self.upgrade and not self.nightly and expected != self.pin.triton else ""

    @property
    def without(self) -> tuple[WithoutRow, ...]:
        """What must be disabled for this target."""
        gpu = str(self.variant.gpu.capability) if self.variant.gpu else None
        return tuple(
            row
            for row in self.pins.file.without
            if row.isa == self.variant.isa.name or (gpu is not None and row.gpu == gpu)
        )

    @property
    def driver(self) -> str:
        """The required driver, as text; empty without a GPU."""
        return driver_text(self.catalog, self.pin, self.variant)

    @property
    def kept(self) -> KeptRow:
        """What was kept of the hand-written recipe of this name."""
        return self.pins.kept.get(self.file_name, KeptRow())

    @property
    def description(self) -> str:
        if self.kept.description:
            return self.kept.description
        nightly = " nightly" if self.nightly else ""
        return f"PyTorch {self.version}{nightly} for {self.target}"

    @property
    def target(self) -> str:
        """The hardware, in words."""
        gpu = self.variant.gpu
        return f"{f'{gpu.sm.upper()} ({gpu.describe()}) and' if gpu else 'CPUs with'} {self.variant.isa.label}"

    @property
    def long_description(self) -> tuple[str, ...]:
        if self.kept.long_description:
            return self.kept.long_description
        gpu, isa = self.variant.gpu, self.variant.isa
        lines = []
        if gpu:
            lines.append(f"GPU: compute capability {gpu.capability}, {gpu.describe(6)}")
            lines.append(f"CUDA: {self.cuda}, cudaPackages_{cuda_tag(self.cuda)} of nixpkgs for every package")
            lines.append(f"MAGMA and NCCL: compiled for this GPU{self._magma_patch}")
            lines.append(f"Driver: NVIDIA {self.driver}")
        lines.append(f"CPU: {isa.arch} with {isa.label} ({'; '.join(isa.first)})")
        if isa.not_on:
            lines.append(f"Not on: {isa.not_on}")
        host = "Intel MKL" if self.blas is BlasChoice.MKL else "OpenBLAS"
        lines.append(f"BLAS: cuBLAS on the GPU, {host} on the CPU" if gpu else f"BLAS: {host}")
        lines.append(f"Python: {self.variant.python}")
        if self.expected_triton:
            expects = f"PyTorch {self.version} expects {self.expected_triton}"
            lines.append(f"Triton, which torch.compile uses: {self.pin.triton} of nixpkgs; {expects}")
        lines += [f"Disabled: {_join(row.parts)}, which {row.why}" for row in self.without]
        return tuple(lines)

    @property
    def story(self) -> tuple[str, ...]:
        """The comments at the top of its file, below the first line."""
        pin = self.kept.nixpkgs
        own = (
            (f"nixpkgs: {pin[:12]}, kept from the recipe that this was; torchtailor has not checked it",) if pin else ()
        )
        return (*self.long_description, *own, *(("", *self.kept.comments) if self.kept.comments else ()))

    @property
    def _magma_patch(self) -> str:
        magma = self.pins.file.magma
        return f"; MAGMA with {magma.name}" if self.cuda and self.cuda.major == magma.cuda_major else ""

    @property
    def title(self) -> str:
        """The first line of its file."""
        cuda = f", CUDA {self.cuda}" if self.cuda else ""
        return f"{self.description.replace(chr(10), ' ').rstrip('.')}{cuda}, Python {self.variant.python}."

    @property
    def hardware(self) -> dict[str, object]:
        """The part of a row that says for what it is built."""
        found: dict[str, object] = {"python": self.variant.python}
        if self.variant.gpu:
            found |= {"cuda": str(self.cuda), "gpuArchSM": str(self.variant.gpu.capability)}
        return found | {"cpu": self.variant.isa.name}

    @property
    def row(self) -> dict[str, object]:
        """What the library makes the package from."""
        found: dict[str, object] = {"name": self.file_name, "version": self.version, **self.hardware}
        if self.blas is BlasChoice.MKL:
            found["blas"] = self.blas.value
        if self.kept.cpu_flags:
            found["cpuFlags"] = self.kept.cpu_flags
        if self.kept.exports:
            found["exports"] = dict(sorted(self.kept.exports.items()))
        found["description"] = self.description
        if self.kept.long_description:
            found["longDescription"] = "\n".join(self.kept.long_description)
        return found


def can_use_mkl(variant: Variant) -> bool:
    """Whether MKL can replace OpenBLAS: only in CPU-only x86_64 variants."""
    return variant.gpu is None and variant.arch == "x86_64"


def cuda_tag(cuda: Dotted | str | None) -> str:
    """13.0 -> `13_0`."""
    return str(cuda or "").replace(".", "_")


def driver_text(catalog: Catalog, pin: NixpkgsRow | None, variant: Variant) -> str:
    """The required driver, as text; empty without a GPU."""
    if variant.gpu is None or variant.build.cuda is None:
        return ""
    least, full = driver_floors(catalog, pin, variant.gpu, variant.build.cuda)
    text = f"{full} or newer"
    if least < full:
        text += f" ({least} with minor-version compatibility)"
    if last := variant.gpu.last_driver_branch:
        text += f"; {last} is the last branch that supports this GPU"
    return text


def driver_floors(catalog: Catalog, pin: NixpkgsRow | None, gpu: Gpu, cuda: Dotted) -> tuple[Dotted, Dotted]:
    """The oldest driver that runs a CUDA on a GPU, and the oldest with full support of the pin's update release."""
    return catalog.toolkit(cuda).drivers_for(gpu, pin.cuda.get(str(cuda)) if pin else None)


def _join(names: list[str] | tuple[str, ...]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
