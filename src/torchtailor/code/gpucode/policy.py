"""What to keep: which images of a library the targets need.

The driver loads one image of a container: the most specific cubin that fits the GPU, else the newest PTX it can
compile. So for code made by plain nvcc the best image is enough. NVIDIA's own libraries look kernels up by exact
architecture; there every image the target could run stays. LTO-IR is never loaded by the driver but linked at
run time (nvJitLink), which works for the same or any newer architecture: it stays where the target could link it.
A Tegra part takes desktop cubins with its newer driver stack (SBSA) and not with the older one; which one it has is
not known here, so what either would load stays.

With relocatable device code the objects from before the device link (`__nv_relfatbin`) are in the library too. They
are not used on a GPU for which the linked container has a cubin. On any other the driver links them again when the
library is loaded, from their cubins or PTX but not from LTO-IR (JIT link). Driver 580 links from either; which one
other drivers take is not known, so both stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, GpuRules, Suffix
from torchtailor.catalog.makers import maker_of
from torchtailor.code.gpucode.fatbin import EntryFlag, Image, codes_of
from torchtailor.code.gpucode.scan import CodeContainer, Reference
from torchtailor.code.gpucode.targets import Targets

_SUFFIXES = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)
_SM = 24  # of a key, the first bit of the architecture: above those, and the kind

Kernels = Callable[[Image], frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class KeptCode:
    """What stays of a library: the images of each container, in order, and the targets that have code in it."""

    images: tuple[tuple[Image, ...], ...]
    served: frozenset[Capability]


@dataclass(frozen=True)
class Policy:
    """Which GPU code stays for the targets.

    `keep_all_minors` is NVIDIA's rule for its own libraries: every cubin the target could run stays. Where the
    targets say `keep_ptx` the newest PTX of each container stays as well, for GPUs that do not exist yet.
    """

    targets: Targets
    rules: GpuRules
    keep_lto: bool = True
    keep_all_minors: bool = False
    objects: bool = False  # the containers are objects of a device link
    _choices: dict[tuple[int, ...], PolicyChoice] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def devices(self) -> tuple[Capability, ...]:
        return self.targets.devices

    def for_library(self, name: str, soname: str = "") -> Policy:
        """The policy for one library: of NVIDIA's own every minor stays."""
        return replace(self, keep_all_minors=True) if maker_of(name, soname) else self

    def keep(self, containers: Sequence[CodeContainer], kernels: Kernels) -> KeptCode:
        """The images to keep of each container of a library; all of them where none runs on any target, and none where
        there is no target.

        `kernels` names the kernels of a cubin, or gives None if it cannot.
        """
        if self.targets.none:
            return KeptCode(
                tuple(() if container.can_be_cut else container.images for container in containers), frozenset()
            )
        policies = self.for_each(containers)
        pairs = list(zip(containers, policies, strict=True))
        served = frozenset[Capability]().union(
            *(policy.usable(container.images) for container, policy in pairs if policy and container.loaded)
        )
        if not served:
            return KeptCode(tuple(container.images for container in containers), served)
        kept: list[tuple[Image, ...]] = []
        for container, policy in pairs:
            if not container.can_be_cut:
                kept.append(container.images)
            else:
                kept.append(policy.keep_images(container.images, kernels) if policy else ())
        return KeptCode(tuple(kept), served)

    def for_each(self, containers: Sequence[CodeContainer]) -> list[Policy | None]:
        """The policy for each container of a library; None where no target uses it.

        The objects of a device link are only for targets that need a JIT link, and for GPUs that do not exist yet.
        """
        linked = [container for container in containers if container.reference is Reference.LINKED]
        objects: Policy | None = self
        if linked:
            archs = tuple(arch for arch in self.targets.archs if self._needs_jit_link(arch.capability, linked))
            targets = replace(self.targets, archs=archs)
            used = archs or targets.keep_ptx
            objects = replace(self, targets=targets, keep_lto=False, objects=True) if used else None
        return [objects if container.reference is Reference.PRELINKED else self for container in containers]

    def _needs_jit_link(self, device: Capability, linked: Iterable[CodeContainer]) -> bool:
        """Whether a device link has no cubin that the device runs with all its drivers. Which objects belong to which
        link is not known."""
        return any(
            not any(code.kind is CodeKind.CUBIN and self.rules.fit(device, code).runs for code in codes_of(one.images))
            for one in linked
        )

    def keep_images(self, images: tuple[Image, ...], kernels: Kernels) -> tuple[Image, ...]:
        """The images to keep of one container, in their order."""
        choice = self._choose(images)
        if len(images) == 1 and choice.served and not choice.spare:
            return images  # most containers of cuFFT hold one image
        chosen = [image for image in images if _named_in(image, choice.needed)]
        kept = set(map(id, chosen))
        for usable, spare_codes in choice.spare.items():  # what one target runs does not make up for another's
            spare = [image for image in images if id(image) not in kept and _named_in(image, spare_codes)]
            if spare:
                runs = [image for image in images if id(image) in kept and _runs_one_of(image, usable)]
                kept.update(map(id, self._still_needed(runs, spare, kernels)))
        return tuple(image for image in images if id(image) in kept)

    def loaded(self, images: Collection[Image]) -> frozenset[CodeTarget]:
        """What the driver would load of these images, for all targets together."""
        return self._choose(images).best

    def usable(self, images: Collection[Image]) -> frozenset[Capability]:
        """The targets that can use at least one of the images."""
        return self._choose(images).served

    def allows(self, image: Image) -> bool:
        """Whether an image may be in an output at all: a target could use it, or its kind is unknown."""
        if self.targets.none:
            return False
        if self._choose((image,)).served:
            return True
        codes = [piece.target for piece in image.pieces]
        return any(code is None or (self.targets.keep_ptx and code.kind is CodeKind.PTX) for code in codes)

    def fits(self, device: Capability, code: CodeTarget) -> bool:
        """Whether the device can use this code, run by one of its drivers or linked at run time."""
        if code.kind is CodeKind.LTOIR:
            return self.keep_lto and _links(device, code)
        return self.rules.fit(device, code, unified_tegra=True).runs

    def _choose(self, images: Collection[Image]) -> PolicyChoice:
        """The choice for these images, made once for each set of architectures: a library repeats few of them."""
        key = tuple(
            [
                piece.sm << _SM | piece.kind_number | piece.flags & _SUFFIXES
                for image in images
                for piece in image.parts or (image,)
            ]
        )
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choice(frozenset(codes_of(images)))
            self._choices[key] = choice
        return choice

    def _choice(self, codes: frozenset[CodeTarget]) -> PolicyChoice:
        needed: set[CodeTarget] = set()
        spare: dict[frozenset[CodeTarget], frozenset[CodeTarget]] = {}
        served: set[Capability] = set()
        loaded: set[CodeTarget] = set()
        for device in self.devices:
            usable = {code for code in codes if self.fits(device, code)}
            if usable:
                served.add(device)
            needed.update(code for code in usable if code.kind is CodeKind.LTOIR)
            ptx = {code for code in usable if code.kind is CodeKind.PTX}
            for unified in self._stacks(device):
                runs = {code for code in codes if self.rules.fit(device, code, unified_tegra=unified).runs}
                best = self.rules.best(device, runs, unified_tegra=unified)
                if best is None:
                    continue
                loaded.add(best)
                cubins = runs - ptx
                if self.keep_all_minors and cubins:
                    needed |= cubins
                    continue
                needed.add(best)
                if cubins - {best}:
                    spare[frozenset(cubins)] = frozenset(cubins - {best})
            if self.objects and (newest := self.rules.best(device, ptx)):
                needed.add(newest)
        if self.targets.keep_ptx:
            plain = [code for code in codes if code.kind is CodeKind.PTX and code.suffix is Suffix.NONE]
            needed.update(sorted(plain, key=lambda code: code.capability)[-1:])
        rest = {usable: codes - needed for usable, codes in spare.items() if codes - needed}
        return PolicyChoice(frozenset(needed), rest, frozenset(served), frozenset(loaded))

    def _stacks(self, device: Capability) -> tuple[bool, ...]:
        """The driver stacks that the device may have: whether each is the unified one."""
        gpu = self.rules.gpus.get(device)
        return (False, True) if gpu and gpu.unified else (False,)

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


def read_ahead(policies: Iterable[Policy], containers: Sequence[CodeContainer], kernels: Kernels) -> Kernels:
    """All names that these policies ask for, read in the order of the file: a wheel's bytes unpack forward only."""
    asked: set[Image] = set()

    def note(image: Image) -> frozenset[str]:
        asked.add(image)
        return frozenset()

    for policy in policies:
        policy.keep(containers, note)  # whatever the names are, it asks for the same
    return {image: kernels(image) for image in sorted(asked, key=lambda image: image.offset)}.__getitem__


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What the architectures of one container mean for the targets."""

    needed: frozenset[CodeTarget]
    # by the cubins that a target runs, those of them for which there is a better one
    spare: Mapping[frozenset[CodeTarget], frozenset[CodeTarget]]
    served: frozenset[Capability]
    best: frozenset[CodeTarget]  # what the driver would take, for each target


def _named_in(image: Image, codes: frozenset[CodeTarget]) -> bool:
    """Whether an image is, or has among its parts, one of these; what is of no known kind always counts."""
    if image.parts:
        return any(part.target is None or part.target in codes for part in image.parts)
    return image.target is None or image.target in codes


def _runs_one_of(image: Image, codes: frozenset[CodeTarget]) -> bool:
    """Whether an image is, or has among its parts, one of these."""
    return any(piece.target in codes for piece in image.pieces)


def _links(device: Capability, code: CodeTarget) -> bool:
    """Whether nvJitLink can make code for the device from LTO-IR."""
    if code.suffix is Suffix.ARCH:
        return device == code.capability
    return code.capability <= device
