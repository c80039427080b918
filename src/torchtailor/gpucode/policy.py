"""What to keep: which images of a library the targets need.

The driver loads one image of a container: the most specific cubin that fits the GPU, else the newest PTX it can
compile. So for code made by plain nvcc the best image is enough. NVIDIA's own libraries look kernels up by exact
architecture; there every image the target could run stays. LTO-IR is never loaded by the driver but linked at
run time (nvJitLink), which works for the same or any newer architecture: it stays where the target could link it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, GpuRules, Suffix
from torchtailor.gpucode.fatbin import EntryFlag, Image
from torchtailor.gpucode.scan import Reference
from torchtailor.gpucode.targets import Targets
from torchtailor.licences import maker_of

_SUFFIXES = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)

Kernels = Callable[[Image], frozenset[str] | None]


class CodeContainer(Protocol):
    """What a policy asks of a container, or of a group of containers with the same architectures."""

    @property
    def images(self) -> tuple[Image, ...]: ...

    @property
    def reference(self) -> Reference: ...

    @property
    def loaded(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeptCode:
    """What stays of a library: the images of each container, in order, and the targets that have code in it."""

    images: tuple[tuple[Image, ...], ...]
    served: frozenset[Capability]


@dataclass(frozen=True)
class Policy:
    """Which GPU code stays for the targets.

    `keep_all_minors` is NVIDIA's rule for its own libraries: every image the target could run stays. Where the
    targets say `keep_ptx` the newest PTX of each container stays as well, for GPUs that do not exist yet.
    """

    targets: Targets
    rules: GpuRules
    keep_lto: bool = True
    keep_all_minors: bool = False
    unified_tegra: bool = False
    _choices: dict[tuple[int, ...], PolicyChoice] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def devices(self) -> tuple[Capability, ...]:
        return self.targets.devices

    def for_library(self, name: str, soname: str = "") -> Policy:
        """The policy for one library: of NVIDIA's own every minor stays."""
        return replace(self, keep_all_minors=True) if maker_of(name, soname) else self

    def keep(self, containers: Sequence[CodeContainer], kernels: Kernels) -> KeptCode:
        """The images to keep of each container of a library; all of them where none runs on any target.

        `kernels` names the kernels of a cubin, or gives None if it cannot.
        """
        linked = any(container.reference is Reference.LINKED for container in containers)
        used = [c for c in containers if c.loaded and not (linked and c.reference is Reference.PRELINKED)]
        served = frozenset[Capability]().union(*(self.usable(container.images) for container in used))
        if not served:
            return KeptCode(tuple(container.images for container in containers), served)
        return KeptCode(tuple(self._keep(container, kernels, linked=linked) for container in containers), served)

    def _keep(self, container: CodeContainer, kernels: Kernels, *, linked: bool) -> tuple[Image, ...]:
        if not container.loaded:  # nothing reads it and a cut would gain nothing
            return container.images
        if linked and container.reference is Reference.PRELINKED:
            return ()  # the device link is done: what went into it is not used
        return self.keep_images(container.images, kernels)

    def keep_images(self, images: tuple[Image, ...], kernels: Kernels) -> tuple[Image, ...]:
        """The images to keep of one container, in their order."""
        choice = self._choose(images)
        if len(images) == 1 and choice.served and not choice.spare:
            return images  # most containers of cuFFT hold one image
        chosen = [image for image in images if _named_in(image, choice.needed)]
        spare = [image for image in images if image not in chosen and _named_in(image, choice.spare)]
        if spare:
            chosen += self._still_needed(chosen, spare, kernels)
        kept = set(map(id, chosen))
        return tuple(image for image in images if id(image) in kept)

    def loaded(self, images: Iterable[Image]) -> frozenset[CodeTarget]:
        """What the driver would load of these images, for all targets together."""
        return self._choose(images).best

    def usable(self, images: Iterable[Image]) -> frozenset[Capability]:
        """The targets that can use at least one of the images."""
        return self._choose(images).served

    def allows(self, image: Image) -> bool:
        """Whether an image may be in an output at all: a target could use it, or its kind is unknown."""
        if self._choose((image,)).served:
            return True
        codes = [piece.target for piece in (image.parts or (image,))]
        return any(code is None or (self.targets.keep_ptx and code.kind is CodeKind.PTX) for code in codes)

    def fits(self, device: Capability, code: CodeTarget) -> bool:
        """Whether the device can use this code, run by the driver or linked at run time."""
        if code.kind is CodeKind.LTOIR:
            return self.keep_lto and _links(device, code)
        return self.rules.fit(device, code, unified_tegra=self.unified_tegra).runs

    def _choose(self, images: Iterable[Image]) -> PolicyChoice:
        """The choice for these images, made once for each set of architectures: a library repeats few of them."""
        pieces = [piece for image in images for piece in (image.parts or (image,))]
        key = tuple([piece.kind_number << 40 | piece.sm << 30 | piece.flags & _SUFFIXES for piece in pieces])
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choice(frozenset(piece.target for piece in pieces if piece.target))
            self._choices[key] = choice
        return choice

    def _choice(self, codes: frozenset[CodeTarget]) -> PolicyChoice:
        needed: set[CodeTarget] = set()
        spare: set[CodeTarget] = set()
        served: set[Capability] = set()
        loaded: set[CodeTarget] = set()
        for device in self.devices:
            usable = {code for code in codes if self.fits(device, code)}
            if usable:
                served.add(device)
            needed.update(code for code in usable if code.kind is CodeKind.LTOIR)
            cubins = {code for code in usable if code.kind is CodeKind.CUBIN}
            ptx = {code for code in usable if code.kind is CodeKind.PTX}
            best = self.rules.best(device, cubins | ptx, unified_tegra=self.unified_tegra)
            if best:
                loaded.add(best)
            if self.keep_all_minors and cubins:
                needed |= cubins
            elif best:
                needed.add(best)
                spare |= cubins - {best}
        if self.targets.keep_ptx:
            plain = [code for code in codes if code.kind is CodeKind.PTX and code.suffix is Suffix.NONE]
            needed.update(sorted(plain, key=lambda code: code.capability)[-1:])
        return PolicyChoice(frozenset(needed), frozenset(spare - needed), frozenset(served), frozenset(loaded))

    @staticmethod
    def _still_needed(chosen: list[Image], spare: list[Image], kernels: Kernels) -> list[Image]:
        """Images that are not the best for any target but hold a kernel that the best ones do not."""
        covered: set[str] = set()
        for image in chosen:
            covered |= kernels(image) or frozenset()
        needed = []
        for image in sorted(spare, key=lambda image: image.sm, reverse=True):
            names = kernels(image)
            if names is None or not names <= covered:
                needed.append(image)
                covered |= names or frozenset()
        return needed


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What the architectures of one container mean for the targets."""

    needed: frozenset[CodeTarget]
    spare: frozenset[CodeTarget]  # runs on a target, but there is a better one
    served: frozenset[Capability]
    best: frozenset[CodeTarget]  # what the driver would take, for each target


def _named_in(image: Image, codes: frozenset[CodeTarget]) -> bool:
    """Whether an image is, or has among its parts, one of these; what is of no known kind always counts."""
    if image.parts:
        return any(part.target is None or part.target in codes for part in image.parts)
    return image.target is None or image.target in codes


def _links(device: Capability, code: CodeTarget) -> bool:
    """Whether nvJitLink can make code for the device from LTO-IR."""
    if code.suffix is Suffix.ARCH:
        return device == code.capability
    return code.capability <= device
