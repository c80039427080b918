"""Whether the GPU in a machine runs the code that a torch holds: read from the libraries, before CUDA is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.artifact.libraries import loose_libraries
from torchtailor.catalog import Capability, Catalog, CodeTarget, Fit, Gpu
from torchtailor.gpucode.fitness import GpuFit, gpu_fit
from torchtailor.gpucode.inspect import inspect
from torchtailor.gpucode.report import LibraryReport
from torchtailor.host.model import GpuDevice, Host
from torchtailor.verify.result import Check, Level

MAIN_LIBRARY = "libtorch_cuda.so"
# Topics of notes that say why a machine has no GPU to offer.
_NO_GPU = frozenset({"no-gpu", "undriven-gpu", "no-driver", "container-without-gpu"})
NAME = "GPU of this machine"
_NAMED = 4


@dataclass(frozen=True, slots=True)
class TorchCode:
    """The GPU code of torch's own libraries and of NVIDIA's beside them."""

    libraries: tuple[LibraryReport, ...]

    @property
    def main(self) -> LibraryReport | None:
        """libtorch_cuda.so, without whose code nothing runs."""
        return next((one for one in self.libraries if Path(one.name).name == MAIN_LIBRARY), None)

    @property
    def targets(self) -> tuple[CodeTarget, ...]:
        """What the main library holds code for."""
        return tuple(group.target for group in self.main.architectures if group.target) if self.main else ()

    def fit(self, device: Capability, catalog: Catalog) -> GpuFit | None:
        return gpu_fit(self.main, device, catalog.rules) if self.main else None

    def empty_for(self, device: Capability, catalog: Catalog) -> tuple[str, ...]:
        """The libraries with GPU code of which this device can use nothing at all."""
        fits = ((library.name, gpu_fit(library, device, catalog.rules)) for library in self.libraries)
        return tuple(name for name, fit in fits if fit.containers and not fit.fit.runs and not fit.linked_at_run_time)


def read_torch(torch: Path) -> TorchCode:
    """Read the libraries of an installed torch and of NVIDIA's packages beside it."""
    folders = [folder for folder in (torch / "lib", torch.parent / "nvidia") if any(loose_libraries([folder]))]
    return TorchCode(tuple(library for library in inspect(folders).libraries if library.has_code))


def presence_checks(
    host: Host, code: TorchCode, catalog: Catalog, wanted: Sequence[Capability] = ()
) -> tuple[Check, ...]:
    """One line for each visible GPU: whether this torch has code for it, and what would work where it has not."""
    if code.main is None:
        reason = f"this torch has no {MAIN_LIBRARY}: it was built without CUDA"
        return (Check.not_applicable(Level.GPU, NAME, reason),)
    devices = [device for device in host.visible_gpus if device.compute is not None]
    if not devices:
        return (Check.not_applicable(Level.GPU, NAME, _why_no_gpu(host, code, catalog)),)
    return tuple(_device_check(device, code, catalog, wanted) for device in devices)


def _why_no_gpu(host: Host, code: TorchCode, catalog: Catalog) -> str:
    hidden = [gpu.label for gpu in host.gpus if not gpu.visible]
    if hidden:
        return f"{', '.join(hidden)} is hidden by CUDA_VISIBLE_DEVICES={host.cuda_visible_devices}"
    notes = [note.text.rstrip(".") for note in host.notes if note.topic in _NO_GPU]
    why = "; ".join(notes) or "there is no NVIDIA GPU in this machine"
    return f"{why}; this torch runs on {suitable_gpus(code.targets, catalog)}"


def _device_check(device: GpuDevice, code: TorchCode, catalog: Catalog, wanted: Sequence[Capability]) -> Check:
    assert device.compute is not None
    fit = code.fit(device.compute, catalog)
    assert fit is not None
    name = NAME if device.index == 0 else f"{NAME} ({device.index})"
    held = ", ".join(map(str, code.targets)) or "nothing"
    what = f"{device.name} ({device.compute})"
    details = {"gpu": device.name, "capability": str(device.compute), "code": [str(one) for one in code.targets]}
    if not fit.fit.runs:
        reason = (
            f"{what} runs none of the code in this torch ({held}): every kernel would end in 'no kernel image is "
            f"available'. It runs on {suitable_gpus(code.targets, catalog)}; for this GPU tailor the stock torch with "
            f"--gpu {device.compute}"
        )
        return Check.of(Level.GPU, name, False, reason, **details)
    empty = code.empty_for(device.compute, catalog)
    details["libraries_without_code"] = list(empty)
    reason = f"{what} runs this torch: {fit.verdict}"
    if wanted and device.compute not in wanted:
        reason += f" (the variant is for {', '.join(map(str, wanted))})"
    if fit.fit is Fit.JIT:
        reason += "; the driver compiles each kernel at its first use, which takes minutes once"
    if empty:
        libraries = "1 library holds" if len(empty) == 1 else f"{len(empty)} libraries hold"
        reason += f"; {libraries} nothing for it: {', '.join(Path(one).name for one in empty[:4])}"
    return Check.of(Level.GPU, name, True, reason, **details)


def suitable_gpus(codes: Sequence[CodeTarget], catalog: Catalog) -> str:
    """`8.0 (Ampere: A100), 9.0 (Hopper: H100, H200)`: what runs code without help from PTX; many without names."""
    found = list(_native(codes, catalog))
    named = len(found) <= _NAMED
    texts = [f"{gpu.capability} ({gpu.describe(2)})" if named else str(gpu.capability) for gpu in found]
    return ", ".join(texts) or "no GPU that is known"


def _native(codes: Sequence[CodeTarget], catalog: Catalog) -> Iterator[Gpu]:
    for capability in sorted(catalog.gpus):
        fits = {catalog.rules.fit(capability, code) for code in codes}
        if fits & {Fit.NATIVE, Fit.COMPATIBLE}:
            yield catalog.gpus[capability]
