"""What to keep: which images of a container the targets need.

The driver loads one image of a container: the most specific cubin that fits the GPU, else the newest PTX it can
compile. So for code made by plain nvcc the best image is enough. NVIDIA's own libraries look kernels up by exact
architecture; there every image the target could run stays. LTO-IR is never loaded by the driver but linked at
run time (nvJitLink), which works for the same or any newer architecture: it stays where the target could link it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, GpuRules, Suffix, TorchArch
from torchtailor.gpucode.fatbin import EntryFlag, Image

_SUFFIXES = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)

Kernels = Callable[[Image], frozenset[str] | None]


@dataclass(frozen=True)
class Policy:
    """For which GPUs to keep code, and how careful to be.

    `keep_all_minors` is NVIDIA's rule for its own libraries: every image the target could run stays. `keep_ptx`
    keeps the newest PTX of each container as well, the way forward to GPUs that do not exist yet.
    """

    targets: tuple[TorchArch, ...]
    rules: GpuRules
    keep_ptx: bool = False
    keep_lto: bool = True
    keep_all_minors: bool = False
    unified_tegra: bool = False
    _choices: dict[tuple[int, ...], Choice] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def devices(self) -> tuple[Capability, ...]:
        return tuple(dict.fromkeys(target.capability for target in self.targets))

    def keep(self, images: Iterable[Image], kernels: Kernels) -> tuple[Image, ...]:
        """The images to keep, in their order. `kernels` names the kernels of a cubin, or None if it cannot."""
        images = tuple(images)
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
        """Whether an image may be in an output at all: something a target could use, or nobody knows what."""
        if self._choose((image,)).served:
            return True
        if image.target is None:
            return not image.parts or any(part.target is None for part in image.parts)
        return self.keep_ptx and image.target.kind is CodeKind.PTX

    def fits(self, device: Capability, code: CodeTarget) -> bool:
        """Whether the device can use this code, run by the driver or linked at run time."""
        if code.kind is CodeKind.LTOIR:
            return self.keep_lto and _links(device, code)
        return self.rules.fit(device, code, unified_tegra=self.unified_tegra).runs

    def _choose(self, images: Iterable[Image]) -> Choice:
        """The choice for these images, made once for each set of architectures: a library repeats few of them."""
        pieces = [piece for image in images for piece in (image.parts or (image,))]
        key = tuple([piece.kind_number << 40 | piece.sm << 30 | piece.flags & _SUFFIXES for piece in pieces])
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choice(frozenset(piece.target for piece in pieces if piece.target))
            self._choices[key] = choice
        return choice

    def _choice(self, codes: frozenset[CodeTarget]) -> Choice:
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
        if self.keep_ptx:
            plain = [code for code in codes if code.kind is CodeKind.PTX and code.suffix is Suffix.NONE]
            needed.update(sorted(plain, key=lambda code: code.capability)[-1:])
        return Choice(frozenset(needed), frozenset(spare - needed), frozenset(served), frozenset(loaded))

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
class Choice:
    """What the architectures of one container mean for the targets."""

    needed: frozenset[CodeTarget]
    spare: frozenset[CodeTarget]  # runs on a target, but something better is there
    served: frozenset[Capability]
    best: frozenset[CodeTarget]  # what the driver would take, for each target


def _named_in(image: Image, codes: frozenset[CodeTarget]) -> bool:
    """Whether an image is, or has among its parts, one of these; what is of no known kind always counts."""
    if image.parts:
        return any(part.target is None or part.target in codes for part in image.parts)
    return image.target is None or image.target in codes


def _links(device: Capability, code: CodeTarget) -> bool:
    if code.suffix is Suffix.ARCH:
        return device == code.capability
    return code.capability <= device
