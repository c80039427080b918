"""What the driver uses of a library on one GPU, read from its containers and the facts about GPUs alone.

This is deliberately not built on `policy.py`: the proof and `verify` compare a stock library and what was cut from it
by this reading, so that a mistake in the choice of what stays is found. Seen on an H200 with driver 580: where the
container of a device link has no cubin for the GPU, the driver links the objects from before it (`__nv_relfatbin`),
each from a cubin or PTX, whichever is there; without them the kernels end in cudaErrorSymbolNotFound. LTO-IR in them
is not used. Other drivers may prefer the one or the other, so both count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, GpuRules, Suffix
from torchtailor.code.gpucode.fatbin import Image, codes_of
from torchtailor.code.gpucode.scan import CodeContainer, Reference

_SPECIFICITY = (Suffix.NONE, Suffix.FAMILY, Suffix.ARCH)


@dataclass(frozen=True, slots=True)
class LostCode:
    """A container of which a GPU can no longer use what it used."""

    container: int  # its position in the library
    device: Capability
    code: CodeTarget
    jit_link: bool

    def __str__(self) -> str:
        if self.jit_link:
            return f"lost {self.code}, from which the driver links code for {self.device} when the library is loaded"
        return f"lost {self.code}, which {self.device} uses"


@dataclass(frozen=True)
class DriverReading:
    """How one driver reads containers on a GPU of one capability."""

    device: Capability
    facts: GpuRules
    unified_tegra: bool = False
    lto: bool = True  # whether LTO-IR counts, which nvJitLink uses and the driver does not

    def used(self, containers: Sequence[CodeContainer]) -> list[frozenset[CodeTarget]]:
        """The code of each container that the GPU uses: what the driver takes, and LTO-IR that can be linked."""
        linked = [container for container in containers if container.reference is Reference.LINKED]
        jit_link = any(not any(self._runs_cubin(code) for code in codes_of(one.images)) for one in linked)
        known: dict[tuple[object, ...], frozenset[CodeTarget]] = {}  # libraries repeat few sets of architectures
        found: list[frozenset[CodeTarget]] = []
        for container in containers:
            an_object = bool(linked) and container.reference is Reference.PRELINKED
            if not container.loaded or (an_object and not jit_link):
                found.append(frozenset())
                continue
            key = (an_object, *[_key(image) for image in container.images])
            if key not in known:
                codes = frozenset(codes_of(container.images))
                known[key] = self._linked(codes) if an_object else self._loaded(codes)
            found.append(known[key])
        return found

    def _loaded(self, codes: Iterable[CodeTarget]) -> frozenset[CodeTarget]:
        """The most specific cubin, else the newest PTX; and all LTO-IR that nvJitLink can use."""
        codes = list(codes)
        taken = _best(filter(self._runs_cubin, codes)) or _best(filter(self._compiles, codes))
        return taken | frozenset(filter(self._links, codes))

    def _linked(self, codes: Iterable[CodeTarget]) -> frozenset[CodeTarget]:
        """What the driver may take of an object."""
        codes = list(codes)
        return _best(filter(self._runs_cubin, codes)) | _best(filter(self._compiles, codes))

    def _runs_cubin(self, code: CodeTarget) -> bool:
        if code.kind is not CodeKind.CUBIN:
            return False
        if code.capability == self.device:
            return True
        if code.suffix is Suffix.ARCH:
            return False
        if self._same_silicon(code) or self._same_family(code):
            return True
        if code.suffix is Suffix.FAMILY:
            return False
        own, made_for = self.facts.gpus.get(self.device), self.facts.gpus.get(code.capability)
        if self.unified_tegra and own and own.unified and code.capability in own.unified.capabilities:
            return True
        if any(gpu.tegra for gpu in (own, made_for) if gpu):
            return False
        return code.capability.major == self.device.major and code.capability.minor < self.device.minor

    def _compiles(self, code: CodeTarget) -> bool:
        if code.kind is not CodeKind.PTX:
            return False
        if code.suffix is Suffix.NONE:
            return code.capability <= self.device
        if code.suffix is Suffix.ARCH:
            return code.capability == self.device or self._same_silicon(code)
        return code.capability == self.device or self._same_family(code)

    def _links(self, code: CodeTarget) -> bool:
        if not self.lto or code.kind is not CodeKind.LTOIR:
            return False
        return code.capability == self.device or (code.suffix is not Suffix.ARCH and code.capability < self.device)

    def _same_silicon(self, code: CodeTarget) -> bool:
        """Whether the code is for the older number of this very GPU."""
        own = self.facts.gpus.get(self.device)
        return own is not None and code.capability in own.same_silicon

    def _same_family(self, code: CodeTarget) -> bool:
        made_for = self.facts.gpus.get(code.capability)
        return code.suffix is Suffix.FAMILY and made_for is not None and self.device in made_for.family_members


def driver_readings(devices: Iterable[Capability], facts: GpuRules, *, lto: bool) -> list[DriverReading]:
    """How GPUs read containers, each with every driver stack that it may have."""
    return [
        DriverReading(device, facts, unified, lto)
        for device in devices
        for unified in ((False, True) if device in facts.gpus and facts.gpus[device].unified else (False,))
    ]


def lost_code(
    before: Sequence[CodeContainer], after: Sequence[CodeContainer], readings: Iterable[DriverReading]
) -> Iterator[LostCode]:
    """What GPUs use of a library and not of what was cut from it; both have the same containers in the same order."""
    for reading in readings:
        pairs = zip(reading.used(before), reading.used(after), strict=True)
        for index, (old, new) in enumerate(pairs):
            for code in sorted(old - new, key=str):
                yield LostCode(index, reading.device, code, before[index].reference is Reference.PRELINKED)


def used_images(containers: Sequence[CodeContainer], readings: Iterable[DriverReading]) -> Iterator[tuple[Image, ...]]:
    """The images of each container that at least one of the GPUs uses."""
    by_reading = [reading.used(containers) for reading in readings]
    for index, container in enumerate(containers):
        codes = frozenset[CodeTarget]().union(*(used[index] for used in by_reading))
        yield tuple(image for image in container.images if codes.intersection(codes_of((image,))))


def _key(image: Image) -> object:
    return (image.arch_key, *[part.arch_key for part in image.parts]) if image.parts else image.arch_key


def _best(codes: Iterable[CodeTarget]) -> frozenset[CodeTarget]:
    best = max(codes, key=lambda code: (code.capability, _SPECIFICITY.index(code.suffix)), default=None)
    return frozenset() if best is None else frozenset({best})
