"""The content of one recipe: everything the template needs, derived from a variant and the pins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.variants.variant import Variant
from torchtailor.catalog.versions import Dotted
from torchtailor.core.errors import ImpossibleError
from torchtailor.nix.pins import ComponentRow, KeptRow, MagmaRow, NixpkgsRow, Pins, SourceRow, WithoutRow

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
    components: tuple[ComponentRow, ...] = ()

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
        assert self.variant.release.nixpkgs is not None
        return self.pins.nixpkgs(self.variant.release.nixpkgs)

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
    def cuda_set(self) -> str:
        return f"cudaPackages_{cuda_tag(self.cuda)}"

    @property
    def python_set(self) -> str:
        return f"python{self.variant.python.replace('.', '')}Packages"

    @property
    def magma(self) -> MagmaRow | None:
        row = self.pins.file.magma
        return row if self.cuda and self.cuda.major == row.cuda_major else None

    @property
    def config(self) -> tuple[str, ...]:
        """The nixpkgs configuration, line by line."""
        lines = []
        if self.variant.gpu or self.blas is BlasChoice.MKL:
            lines.append("allowUnfree = true;")
        if self.cuda and self.cuda.major in self.pin.broken_cuda:
            lines.append(f"allowBroken = true; # nixpkgs marks torch as broken with CUDA {self.cuda.major}")
        if self.variant.gpu:
            lines.append("cudaSupport = true;")
            if not self.nccl_apart:
                lines.append("cudaCapabilities = [ gpuArchSM ]; # NCCL and MAGMA are compiled for these")
                lines.append("cudaForwardCompat = false;")
        return tuple(lines)

    @property
    def nccl_apart(self) -> bool:
        """Whether nixpkgs cannot be set to the GPU's capability, because its cuDNN refuses it."""
        gpu = self.variant.gpu
        return gpu is not None and str(gpu.capability) in self.pin.cudnn_refuses.get(str(self.cuda), ())

    @property
    def changelog(self) -> str:
        """Where the changes of a version that the pin lacks are; empty if nixpkgs' own link is right."""
        if self.nightly:
            return f"https://github.com/pytorch/pytorch/commits/{self.nightly.rev}"
        return f"https://github.com/pytorch/pytorch/releases/tag/{self.upgrade.rev}" if self.upgrade else ""

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
    def exports(self) -> tuple[str, ...]:
        pairs = {**self.kept.exports, **{name: value for row in self.without for name, value in row.exports.items()}}
        return tuple(f"{name}={value}" for name, value in sorted(pairs.items()))

    @property
    def cache(self) -> tuple[str, ...]:
        """CMake cache variables, as lines of CMake."""
        lines = []
        if self.upgrade:
            lines.append(f'set(TORCH_BUILD_VERSION "{self.version}" CACHE STRING "" FORCE)')
            if self.cuda:
                lines.append(f'set(CUDA_VERSION "{self.cuda}" CACHE STRING "")')
        names = [name for row in self.without for name in row.cache]
        return (*lines, *(f'set({name} FALSE CACHE BOOL "")' for name in names))

    @property
    def driver(self) -> str:
        """The required driver, as text; empty without a GPU."""
        return driver_text(self.catalog, self.pin, self.variant)

    @property
    def kept(self) -> KeptRow:
        """What was kept of the hand-written recipe of this name."""
        return self.pins.kept.get(self.file_name, KeptRow())

    @property
    def cpu_flags(self) -> tuple[str, ...]:
        return self.kept.cpu_flags or self.variant.isa.compile_flags

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
            lines.append(f"CUDA: {self.cuda}")
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

    def values(self) -> Mapping[str, object]:
        """The template's variables."""
        upgrade, magma = self.upgrade, self.magma
        numbers: dict[str, int] = {}
        for name, there in (("cuda", self.variant.gpu), ("magma", self.variant.gpu), ("torch", upgrade)):
            if there:
                numbers[name] = len(numbers) + 1
        return {
            "gpu": self.variant.gpu,
            "isa": self.variant.isa,
            "pin": self.pin,
            "pin_hash": self.pins.hash_of(self.pin),
            "config": self.config,
            "numbers": numbers,
            "cuda": self.cuda,
            "cuda_set": self.cuda_set,
            "cuda_tag": cuda_tag(self.cuda),
            "python_set": self.python_set,
            "nccl_apart": self.nccl_apart,
            "changelog": self.changelog,
            "triton": self.expected_triton,
            "magma": magma,
            "magma_hash": self.pins.hash_of(magma) if magma else "",
            "mkl": self.blas is BlasChoice.MKL,
            "upgrade": upgrade,
            "upgrade_hash": self.pins.hash_of(upgrade) if upgrade else "",
            "stub": bool(upgrade and self.variant.gpu),
            "cccl": bool(magma),
            "cpu_flags": [nix_string(flag) for flag in self.cpu_flags],
            "exports": self.exports,
            "cache": self.cache,
            "pname": self.file_name,
            "description": nix_string(self.description),
            "long_description": [line.replace("''", "'''").replace("${", "''${") for line in self.long_description],
            "platform": self.variant.platform,
            "gigabytes": GIGABYTES_PER_JOB,
            "components": self.components,
            "component_names": _join([component.name for component in self.components]),
        }


def can_use_mkl(variant: Variant) -> bool:
    """Whether MKL can replace OpenBLAS: only in CPU-only x86_64 variants."""
    return variant.gpu is None and variant.arch == "x86_64"


def nix_string(text: str) -> str:
    """Text between the quotes of a Nix string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${").replace("\n", "\\n")


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
