"""The GPU code of an installed torch, read from its libraries before CUDA is asked, and the GPUs that run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog import Capability, Catalog, CodeTarget, Fit, Gpu
from torchtailor.code.gpucode.fatbin import codes_of
from torchtailor.code.gpucode.fitness import GpuFit, gpu_fit
from torchtailor.code.gpucode.report import LibraryReport
from torchtailor.core.errors import BadInputError
from torchtailor.trees.artifact.libraries import loose_libraries
from torchtailor.verification.inspection.inspect import inspect
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX, open_pack

MAIN_LIBRARY = "libtorch_cuda.so"
_NAMED = 4


@dataclass(frozen=True, slots=True)
class TorchCode:
    """The GPU code of torch's own libraries and of NVIDIA's beside them."""

    libraries: tuple[LibraryReport, ...]
    packed: tuple[CodeTarget, ...] = ()  # of the main library, in packs beside it

    @property
    def main(self) -> LibraryReport | None:
        """libtorch_cuda.so, without whose code nothing runs."""
        return next((library for library in self.libraries if Path(library.name).name == MAIN_LIBRARY), None)

    @property
    def targets(self) -> tuple[CodeTarget, ...]:
        """What the main library holds code for, in itself or in packs."""
        own = tuple(group.target for group in self.main.architectures if group.target) if self.main else ()
        return (*own, *(code for code in self.packed if code not in own))

    def runs_from_packs(self, device: Capability, catalog: Catalog) -> bool:
        return any(catalog.rules.fit(device, code).runs for code in self.packed)

    def fit(self, device: Capability, catalog: Catalog) -> GpuFit | None:
        return gpu_fit(self.main, device, catalog.rules) if self.main else None

    def empty_for(self, device: Capability, catalog: Catalog) -> tuple[str, ...]:
        """The libraries with GPU code of which this device can use nothing at all."""
        fits = ((library.name, gpu_fit(library, device, catalog.rules)) for library in self.libraries)
        return tuple(name for name, fit in fits if fit.containers and not fit.fit.runs and not fit.linked_at_run_time)


def read_torch(torch: Path) -> TorchCode:
    """Read the libraries of an installed torch and of NVIDIA's packages beside it."""
    folders = [folder for folder in (torch / "lib", torch.parent / "nvidia") if any(loose_libraries([folder]))]
    libraries = tuple(library for library in inspect(folders).libraries if library.has_code)
    return TorchCode(libraries, tuple(_packed(torch.parent / PACK_FOLDER)))


def _packed(folder: Path) -> Iterator[CodeTarget]:
    """What packs hold of the main library; a damaged one, which no program loads either, has nothing."""
    seen: set[CodeTarget] = set()
    for path in sorted(folder.glob(f"*/{MAIN_LIBRARY}-*{PACK_SUFFIX}")):
        with suppress(BadInputError, OSError), open_pack(path) as pack:
            images = [image for row in pack.rows for image in pack.container(row).entries]
            found = set(codes_of(images))
            yield from sorted(found - seen, key=str)
            seen |= found


def suitable_gpus(codes: Sequence[CodeTarget], catalog: Catalog) -> str:
    """`8.0 (Ampere: A100), 9.0 (Hopper: H100, H200)`: what runs code without help from PTX; many without names."""
    found = list(_native(codes, catalog))
    named = len(found) <= _NAMED
    texts = [f"{gpu.capability} ({gpu.describe(2)})" if named else str(gpu.capability) for gpu in found]
    return ", ".join(texts) or "no known GPU"


def _native(codes: Sequence[CodeTarget], catalog: Catalog) -> Iterator[Gpu]:
    for capability in sorted(catalog.gpus):
        fits = {catalog.rules.fit(capability, code) for code in codes}
        if fits & {Fit.NATIVE, Fit.COMPATIBLE}:
            yield catalog.gpus[capability]
