"""What a GPU can do with the code of a library, and what of it cutting for that GPU would leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Fit, GpuRules
from torchtailor.gpucode.fatbin import CONTAINER_HEADER
from torchtailor.gpucode.report import ContainerGroup, LibraryReport
from torchtailor.gpucode.scan import Reference


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

    @property
    def verdict(self) -> str:
        """`native`, `compatible through 8.6`, `JIT from PTX 8.0`, `linked at run time` or `nothing`."""
        if self.code is None:
            return "linked at run time" if self.linked_at_run_time else "nothing"
        if self.fit is Fit.COMPATIBLE:
            return f"compatible through {self.code.capability}"
        if self.fit is Fit.JIT:
            return f"JIT from PTX {self.code.capability}"
        return "native"


def gpu_fit(library: LibraryReport, device: Capability, rules: GpuRules) -> GpuFit:
    """How a device uses a library's code."""
    used: Counter[CodeTarget] = Counter()
    apart: Counter[CodeTarget] = Counter()  # from containers of PTX alone, which stand beside those of cubins
    containers: Counter[Fit] = Counter()
    linked = 0
    for group in library.container_groups:
        if _unused(library, group):
            continue
        codes = [code for code in group.bytes_by_target if code is not None]
        best = rules.best(device, codes)
        if best is not None:
            containers[rules.fit(device, best)] += group.containers
            alone = all(code.kind is not CodeKind.CUBIN for code in codes)
            (apart if alone else used)[best] += group.bytes_by_target[best]
        elif any(_links(device, code) for code in codes):
            linked += group.containers
        else:
            containers[Fit.NONE] += group.containers
    used = used or apart
    most = max(used, key=lambda code: used[code]) if used else None
    fit = rules.fit(device, most) if most else Fit.NONE
    return GpuFit(device, fit, most, containers, linked)


def kept_bytes(library: LibraryReport, devices: Iterable[Capability], rules: GpuRules, *, every_minor: bool) -> int:
    """About how many bytes of GPU code would be left after tailoring for these devices.

    `every_minor` is the careful rule for NVIDIA's own libraries: all that a device could run stays, not the best.
    """
    devices = tuple(devices)
    kept = 0
    for group in library.container_groups:
        kept += group.containers * CONTAINER_HEADER.size
        if _unused(library, group):
            continue
        needed = {code for device in devices for code in _needed(group, device, rules, every_minor=every_minor)}
        kept += sum(
            size for code, size in group.bytes_by_target.items() if group.solid or code is None or code in needed
        )  # what is unknown is never dropped
    return kept


def _needed(group: ContainerGroup, device: Capability, rules: GpuRules, *, every_minor: bool) -> set[CodeTarget]:
    codes = [code for code in group.bytes_by_target if code is not None]
    needed = {code for code in codes if _links(device, code)}
    best = rules.best(device, codes)
    if best is None:
        return needed
    if every_minor:
        needed.update(c for c in codes if c.kind is best.kind and rules.fit(device, c).runs)
    return needed | {best}


def _links(device: Capability, code: CodeTarget) -> bool:
    """Whether nvJitLink can make code for the device of it."""
    return code.kind is CodeKind.LTOIR and code.capability <= device


def _unused(library: LibraryReport, group: ContainerGroup) -> bool:
    """Whether the containers are only what the device link was made from."""
    return library.device_linked and group.reference is Reference.PRELINKED
