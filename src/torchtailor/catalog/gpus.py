"""GPU architectures, the code they run, and the rules between the two.

The rules are the driver's, as the facts give them: a cubin runs on the same major with the same or a higher minor;
an `a` cubin only on exactly its own capability; an `f` cubin on the members of its family from its own minor up;
Tegra parts neither give nor take; PTX is compiled for any device at least as new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, Self

from msgspec import Meta

from torchtailor.catalog.schema import Arch, Dotted, Sourced, Strict, Word

NO_GPU_LABEL = "nogpu"  # in the version of a wheel that was cut for machines without a GPU

_CAPABILITY = re.compile(r"(?:(?:sm|compute|lto)_?)?(\d{1,2})\.(\d)|(?:(?:sm|compute|lto)_?)?(\d{2,3})", re.IGNORECASE)
_CODE = re.compile(r"(sm|compute|lto)_(\d{1,2})(\d)([af]?)", re.IGNORECASE)
_TORCH_ARCH = re.compile(r"(\d{1,2}\.\d)([af]?)(\+PTX)?", re.IGNORECASE)


class Capability(Word):
    """A compute capability such as 9.0."""

    __slots__ = ()
    pattern: ClassVar[str] = r"^((sm|compute|lto)_?)?(\d{1,2}\.\d|\d{2,3})$"

    def __init__(self, major: int, minor: int) -> None:
        super().__init__((major, minor))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `9.0`, `sm_90`, `sm90`, `compute_90` or `90`."""
        match = _CAPABILITY.fullmatch(text.strip())
        if not match:
            raise ValueError(f"{text!r} is not a compute capability such as 9.0 or sm_90")
        if match[3]:
            return cls.from_number(int(match[3]))
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_number(cls, number: int) -> Self:
        """90 -> 9.0, 121 -> 12.1."""
        return cls(number // 10, number % 10)

    @property
    def major(self) -> int:
        return self.key[0]

    @property
    def minor(self) -> int:
        return self.key[1]

    @property
    def number(self) -> int:
        """9.0 -> 90, as in sm_90."""
        return self.major * 10 + self.minor

    @property
    def sm(self) -> str:
        """The short name used in variants: `sm90`."""
        return f"sm{self.number}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Suffix(Enum):
    """What an architecture's suffix promises."""

    NONE = ""
    ARCH = "a"
    FAMILY = "f"


class CodeKind(Enum):
    """The forms in which GPU code is shipped."""

    CUBIN = "sm"
    PTX = "compute"
    LTOIR = "lto"


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """What a piece of GPU code was compiled for: `sm_90a`, `compute_120`, `lto_80`."""

    kind: CodeKind
    capability: Capability
    suffix: Suffix = Suffix.NONE

    @classmethod
    def parse(cls, text: str) -> CodeTarget:
        """Read the names that nvcc and cuobjdump use."""
        match = _CODE.fullmatch(text.strip())
        if not match:
            raise ValueError(f"{text!r} is not a code target such as sm_90a or compute_120")
        capability = Capability(int(match[2]), int(match[3]))
        return cls(CodeKind(match[1].lower()), capability, Suffix(match[4].lower()))

    def __str__(self) -> str:
        return f"{self.kind.value}_{self.capability.number}{self.suffix.value}"


def codes_named(labels: Iterable[str]) -> tuple[CodeTarget, ...]:
    """What architectures are for; what nobody has met is left out."""
    found = []
    for label in labels:
        with suppress(ValueError):
            found.append(CodeTarget.parse(label))
    return tuple(found)


class Fit(Enum):
    """How a GPU can use a piece of code, best first."""

    NATIVE = "native"
    COMPATIBLE = "compatible"
    JIT = "jit"
    NONE = "none"

    @property
    def runs(self) -> bool:
        return self is not Fit.NONE


class UnifiedTegra(Strict, frozen=True, kw_only=True):
    """From this CUDA on, a Tegra part also takes these desktop cubins."""

    cuda: Annotated[Dotted, Meta(description="The first CUDA with which this holds.")]
    capabilities: Annotated[frozenset[Capability], Meta(description="The desktop cubins that run.")]
    condition: Annotated[str, Meta(description="What the system must be, as the end of a sentence.")]


class GpuFeatures(Strict, frozen=True, kw_only=True):
    """What the hardware of an architecture has."""

    tensor_cores: Annotated[int, Meta(description="The generation of its Tensor cores; 0: none.")] = 0
    formats: Annotated[tuple[str, ...], Meta(description="The number formats that they take: BF16, FP8.")] = ()
    mig: Annotated[int | None, Meta(description="The most MIG instances; 0: no MIG; absent: not known.")] = None
    memory: Annotated[tuple[str, ...], Meta(description="Its kinds of memory: HBM3, GDDR7.")] = ()
    remark: Annotated[str, Meta(description="Products that differ.")] = ""


Products = tuple[str, ...]


class Gpu(Sourced, frozen=True, kw_only=True):
    """One GPU architecture."""

    capability: Annotated[Capability, Meta(description="The compute capability, such as 8.6; the key of the row.")]
    family: Annotated[str, Meta(description="The architecture's name: Ampere, Hopper.")]
    first_cuda: Annotated[Dotted, Meta(description="The first CUDA that compiles for it.")]
    hosts: Annotated[frozenset[Arch], Meta(description="The CPU platforms on which it exists.")]
    datacenter: Annotated[Products, Meta(description="Data-centre products: H100, L40S.")] = ()
    workstation: Annotated[Products, Meta(description="Workstation products: RTX A6000.")] = ()
    consumer: Annotated[Products, Meta(description="Consumer products: RTX 4090.")] = ()
    embedded: Annotated[Products, Meta(description="Embedded products: Jetson AGX Orin.")] = ()
    last_cuda: Annotated[Dotted | None, Meta(description="The last CUDA that compiles for it.")] = None
    first_driver: Annotated[Dotted | None, Meta(description="The first driver that supports it.")] = None
    product_drivers: Annotated[
        Mapping[str, Dotted], Meta(description="The first driver of products that came later than the architecture.")
    ] = {}
    last_driver_branch: Annotated[int | None, Meta(description="The last driver branch that supports it: 580.")] = None
    tegra: Annotated[bool, Meta(description="Whether it is a Tegra part, whose cubins are its own.")] = False
    offered: Annotated[bool, Meta(description="Whether any public product with CUDA has it.")] = True
    arch_specific: Annotated[bool, Meta(description="Whether there is code for it alone, such as sm_90a.")] = False
    family_members: Annotated[
        frozenset[Capability], Meta(description="The capabilities on which its family code (sm_100f) runs.")
    ] = frozenset()
    same_silicon: Annotated[
        frozenset[Capability], Meta(description="Older numbers of the same silicon: 10.1 of 11.0.")
    ] = frozenset()
    features: Annotated[GpuFeatures | None, Meta(description="Tensor cores, formats, MIG, memory.")] = None
    cpu: Annotated[str | None, Meta(description="The CPU core that it always comes with, as in Jetsons.")] = None
    unified: Annotated[UnifiedTegra | None, Meta(description="When a Tegra part also runs desktop cubins.")] = None

    @property
    def sm(self) -> str:
        return self.capability.sm

    @property
    def products(self) -> Mapping[str, Products]:
        """Its products by market."""
        return {
            "datacenter": self.datacenter,
            "workstation": self.workstation,
            "consumer": self.consumer,
            "embedded": self.embedded,
        }

    @property
    def all_products(self) -> Products:
        return tuple(name for names in self.products.values() for name in names)

    def first_driver_of(self, name: str) -> Dotted | None:
        """The first driver that supports a product, by the name that drivers print; else that of the architecture."""
        words = set(re.findall(r"[a-z0-9]+", name.lower()))
        later = [driver for product, driver in self.product_drivers.items() if words >= set(product.lower().split())]
        return max(later) if later else self.first_driver

    def in_datacenters(self, name: str) -> bool | None:
        """Whether a product, by the name that drivers print, is one for data centres; None where that is not known."""
        words = set(re.findall(r"[a-z0-9]+", name.lower()))
        rows = [(market, set(one.lower().split())) for market, products in self.products.items() for one in products]
        found = [(market, product) for market, product in rows if words >= product]
        markets = {market for market, product in found if not any(product < longer for _, longer in found)}
        if not markets and words & {"geforce", "gtx", "rtx", "quadro", "titan"}:
            return False
        return "datacenter" in markets if len(markets) == 1 else None

    def describe(self, limit: int = 3) -> str:
        """A short human name with one product of each market first: `Ampere: A40, RTX A6000, RTX 3090 Ti`."""
        markets = list(self.products.values())
        ranked = sorted((rank, at) for at, names in enumerate(markets) for rank in range(len(names)))
        names = ", ".join(markets[at][rank] for rank, at in ranked[:limit])
        return f"{self.family}: {names}" if names else self.family


class GpuRules:
    """Answers "does this GPU run that code?" for a set of architectures."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._gpus = {gpu.capability: gpu for gpu in gpus}
        # the devices that are the very silicon of an older number: Thor was 10.1 before it was 11.0
        self._successors: dict[Capability, frozenset[Capability]] = {}
        for gpu in self._gpus.values():
            for older in gpu.same_silicon:
                same = self._successors.get(older, frozenset({older}))
                self._successors[older] = same | {gpu.capability}

    @property
    def gpus(self) -> Mapping[Capability, Gpu]:
        return self._gpus

    def fit(self, device: Capability, code: CodeTarget, *, unified_tegra: bool = False) -> Fit:
        """How a device of this capability can use that code.

        `unified_tegra` says that the device runs the unified (SBSA) driver stack, where a Tegra part takes desktop
        cubins too.
        """
        if code.kind is CodeKind.LTOIR:
            return Fit.NONE  # linked at run time by nvJitLink, never loaded by the driver
        if code.kind is CodeKind.PTX:
            return self._fit_ptx(device, code)
        if self._runs_cubin(device, code, unified_tegra=unified_tegra):
            return Fit.NATIVE if code.capability == device else Fit.COMPATIBLE
        return Fit.NONE

    def best(
        self, device: Capability, codes: Iterable[CodeTarget], *, unified_tegra: bool = False
    ) -> CodeTarget | None:
        """The code the driver would take: the most specific cubin that fits, else the newest PTX."""
        ranked = [
            (self._rank(device, code), code)
            for code in codes
            if self.fit(device, code, unified_tegra=unified_tegra).runs
        ]
        return max(ranked, key=lambda pair: pair[0])[1] if ranked else None

    @staticmethod
    def _rank(device: Capability, code: CodeTarget) -> tuple[int, Capability, int]:
        suffixes = (Suffix.NONE, Suffix.FAMILY, Suffix.ARCH)
        return (code.kind is CodeKind.CUBIN, code.capability, suffixes.index(code.suffix))

    def _fit_ptx(self, device: Capability, code: CodeTarget) -> Fit:
        if code.suffix is Suffix.ARCH:
            fits = device in self._same(code.capability)
        elif code.suffix is Suffix.FAMILY:
            fits = device in self._family(code.capability)
        else:
            fits = device >= code.capability
        return Fit.JIT if fits else Fit.NONE

    def _runs_cubin(self, device: Capability, code: CodeTarget, *, unified_tegra: bool) -> bool:
        if device in self._same(code.capability):
            return code.suffix is not Suffix.ARCH or device == code.capability
        if code.suffix is Suffix.ARCH:
            return False
        if code.suffix is Suffix.FAMILY:
            return device in self._family(code.capability)
        gpu = self._gpus.get(device)
        if gpu and gpu.unified and unified_tegra and code.capability in gpu.unified.capabilities:
            return True
        if self._isolated(device) or self._isolated(code.capability):
            return False
        return code.capability.major == device.major and code.capability.minor <= device.minor

    def _same(self, capability: Capability) -> frozenset[Capability]:
        """The devices that are this very silicon."""
        return self._successors.get(capability) or frozenset({capability})

    def _family(self, capability: Capability) -> frozenset[Capability]:
        """The devices that run family code of this capability."""
        gpu = self._gpus.get(capability)
        return (gpu and gpu.family_members) or frozenset({capability})

    def _isolated(self, capability: Capability) -> bool:
        gpu = self._gpus.get(capability)
        return bool(gpu and gpu.tegra)


@dataclass(frozen=True, slots=True)
class TorchArch:
    """One item of TORCH_CUDA_ARCH_LIST: `9.0`, `9.0a`, `12.0+PTX`."""

    capability: Capability
    suffix: Suffix = Suffix.NONE
    ptx: bool = False

    @classmethod
    def parse_list(cls, text: str) -> tuple[TorchArch, ...]:
        """Read PyTorch's spelling, separated by semicolons, commas or spaces."""
        items = []
        for word in re.split(r"[;,\s]+", text.strip()):
            match = _TORCH_ARCH.fullmatch(word)
            if not match:
                raise ValueError(f"{word!r} is not in TORCH_CUDA_ARCH_LIST's spelling (9.0, 9.0a, 12.0+PTX)")
            items.append(cls(Capability.parse(match[1]), Suffix(match[2].lower()), bool(match[3])))
        return tuple(items)

    @property
    def codes(self) -> tuple[CodeTarget, ...]:
        """The code that nvcc puts into a library for this item."""
        cubin = CodeTarget(CodeKind.CUBIN, self.capability, self.suffix)
        if not self.ptx:
            return (cubin,)
        return (cubin, CodeTarget(CodeKind.PTX, self.capability, self.suffix))

    def __str__(self) -> str:
        return f"{self.capability}{self.suffix.value}{'+PTX' if self.ptx else ''}"


class TorchArchList(tuple[TorchArch, ...]):
    """A TORCH_CUDA_ARCH_LIST: `8.0;9.0a;12.0+PTX`."""

    __slots__ = ()
    pattern: ClassVar[str] = r"^\d{1,2}\.\d[af]?(\+PTX)?([;,\s]+\d{1,2}\.\d[af]?(\+PTX)?)*$"

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(TorchArch.parse_list(text))
