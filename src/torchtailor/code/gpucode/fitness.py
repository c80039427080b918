"""What a GPU can do with the code of a library, and what of it cutting for that GPU would leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Fit, GpuRules, TorchArch
from torchtailor.code.gpucode.fatbin import Image
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.report import ContainerGroup, LibraryReport
from torchtailor.code.gpucode.scan import Reference
from torchtailor.code.gpucode.targets import Targets

_NAMED = 3


@dataclass(frozen=True, slots=True)
class GpuFit:
    """How one GPU uses the code of one library.

    `fit` is how it uses most of what it uses, counted in bytes; `containers` says the same for each container. A
    container for other GPUs only is nothing wrong: many libraries have one per kernel and architecture.
    """

    device: Capability
    fit: Fit
    code: CodeTarget | None  # the code that most of it comes from
    containers: Mapping[Fit, int]
    linked_at_run_time: int  # containers of LTO-IR, which nvJitLink makes into code for any newer GPU
    jit_link: bool = False  # the driver links most of it from relocatable objects when the library is loaded
    condition: str = ""  # what the system must be for this, where not every driver of the device takes that code

    @property
    def verdict(self) -> str:
        """`native`, `compatible through 8.6`, `JIT from PTX 8.0`, `JIT link from PTX 8.0`, `linked at run time` or
        `nothing`."""
        if self.code is None:
            return "linked at run time" if self.linked_at_run_time else "nothing"
        if self.jit_link:
            kind = "PTX" if self.code.kind is CodeKind.PTX else "cubins for"
            return f"JIT link from {kind} {self.code.capability}"
        if self.fit is Fit.COMPATIBLE:
            given = f", given {self.condition}" if self.condition else ""
            return f"compatible through {self.code.capability}{given}"
        if self.fit is Fit.JIT:
            return f"JIT from PTX {self.code.capability}"
        return "native"


def gpu_fit(library: LibraryReport, device: Capability, rules: GpuRules) -> GpuFit:
    """How a device uses a library's code."""
    policy = Policy(Targets((TorchArch(device),)), rules)
    used: Counter[tuple[CodeTarget, Fit, bool]] = Counter()
    apart: Counter[tuple[CodeTarget, Fit, bool]] = Counter()  # from containers of PTX alone, beside those of cubins
    containers: Counter[Fit] = Counter()
    linked = 0
    groups = library.container_groups
    policies = policy.for_each(groups)
    objects_used = any(own is not None and own is not policy for own in policies)
    for group, own in zip(groups, policies, strict=True):
        if own is None or (objects_used and group.reference is Reference.LINKED and not policy.usable(group.images)):
            continue  # not used: the device link, or what it was made from
        jit_link = own is not policy  # an object of a device link that has no cubin for the device
        codes = [code for code in group.bytes_by_target if code]
        best = rules.best(device, codes) or rules.best(device, codes, unified_tegra=True)
        if best is not None:
            fit = Fit.JIT if jit_link else rules.fit(device, best, unified_tegra=True)
            containers[fit] += group.containers
            alone = not any(code and code.kind is CodeKind.CUBIN for code in group.bytes_by_target)
            of_a_link = group.reference in (Reference.LINKED, Reference.PRELINKED)
            (apart if alone and not of_a_link else used)[best, fit, jit_link] += group.bytes_by_target[best]
        elif own.usable(group.images):
            linked += group.containers
        else:
            containers[Fit.NONE] += group.containers
    used = used or apart
    if not used:
        return GpuFit(device, Fit.NONE, None, containers, linked)
    code, fit, jit_link = max(used, key=lambda use: used[use])
    return GpuFit(device, fit, code, containers, linked, jit_link, _condition(device, code, rules))


def _condition(device: Capability, code: CodeTarget, rules: GpuRules) -> str:
    """What the system must be for the device to take this code; empty where any will do."""
    gpu = rules.gpus.get(device)
    return gpu.unified.condition if gpu and gpu.unified and not rules.fit(device, code).runs else ""


def only_ptx(libraries: int, gpus: str, named: Sequence[str] = ()) -> str:
    """What it means that libraries have nothing but PTX for a GPU; of `named` the first are said."""
    has = "library has" if libraries == 1 else "libraries have"
    names = f" ({', '.join(named[:_NAMED])}{', ...' if named[_NAMED:] else ''})" if named else ""
    return (
        f"{libraries} {has} no machine code for {gpus}, only PTX{names}: the driver compiles it when it is "
        "first used, which makes the first run slow, and keeps the result in its cache."
    )


def kept_bytes(library: LibraryReport, policy: Policy) -> int:
    """How many bytes of GPU code would be left after tailoring, if all cubins of a container have the same kernels.

    Where a lesser cubin has a kernel that the best one lacks it stays too; that is known only after unpacking both.
    """
    return library.stored - sum(removed for _, removed in _removed(library, policy))


def zeroed_bytes(library: LibraryReport, policy: Policy) -> int:
    """Of the bytes that tailoring would take out, those that stay in the file as zeros."""
    return sum(removed for group, removed in _removed(library, policy) if library.program or group.leaves_zeros)


def _removed(library: LibraryReport, policy: Policy) -> Iterator[tuple[ContainerGroup, int]]:
    """The bytes that tailoring would take out of each group of containers."""
    if library.not_cut:
        return
    groups = library.container_groups
    policy = policy.for_library(library.name, library.soname)
    if library.proprietary:  # also what its name does not tell
        policy = replace(policy, keep_all_minors=True)
    kept = policy.keep(groups, _same_kernels)
    for group, images in zip(groups, kept.images, strict=True):
        yield group, group.stored - group.size_with(images)


def _same_kernels(image: Image) -> frozenset[str] | None:
    """Of images compressed together the kernels cannot be read."""
    return None if image.parts else frozenset()
