"""The document of `inspect --json`: what is in every library, and what the GPUs that were asked for do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from torchtailor.catalog.gpus import Capability, Fit
from torchtailor.code.gpucode.files import CodeFileKind
from torchtailor.code.gpucode.fitness import gpu_fit
from torchtailor.code.gpucode.report import LibraryReport
from torchtailor.code.gpucode.scan import Reference
from torchtailor.core.documents import Bytes, document
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.verification.inspection.inspection import Droppable, Inspection, Skipped
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.unused import Loaded, UnusedCode


class InspectedCode(Struct):
    """The code of one architecture and kind."""

    label: str = field(name="name")
    kind: Annotated[str, Meta(description="`cubin`, `ptx`, `ltoir` or `unknown`")]
    images: int
    stored: Bytes
    raw: Annotated[int, Meta(description="bytes, unpacked")]
    compression: Annotated[dict[str, int], Meta(description="images by how they are stored")]
    sections: Annotated[dict[str, int], Meta(description="images by section")]


class InspectedPlace(Struct):
    """Containers of one section that are reached in one way, whatever they hold."""

    section: str
    reference: Reference
    bare: Annotated[bool, Meta(description="cubins without a container around them")]
    containers: int = 0
    stored: Bytes = 0


class LibraryOnGpu(Struct):
    """What one GPU does with the code of one library."""

    device: Capability = field(name="gpu")
    fit: Fit
    through: Annotated[str | None, Meta(description="the code that most of it comes from")]
    verdict: str
    containers: Annotated[dict[str, int], Meta(description="by fit")]
    linked_at_run_time: Annotated[int, Meta(description="containers of LTO-IR")]
    saved: Annotated[int, Meta(description="how many bytes tailoring for it would take out, of an image about")]


class InspectedLibrary(Struct):
    """The GPU code of one library."""

    name: str
    size: Bytes
    machine: str
    device_linked: bool
    lookalikes: int
    containers: int
    images: int
    stored: Bytes
    raw: Annotated[int, Meta(description="bytes, unpacked")]
    architectures: tuple[InspectedCode, ...]
    places: tuple[InspectedPlace, ...]
    texts: Annotated[
        tuple[InspectedCode, ...], Meta(description="PTX as text outside of containers, which is never cut")
    ] = field(name="ptx_texts")
    gpus: tuple[LibraryOnGpu, ...]
    hot: Annotated[Bytes, Meta(description="of a library that was cut to touched pages: bytes of those")]
    cold: Annotated[Bytes, Meta(description="bytes of its other pages, which are in a pack")]


class InspectedFile(Struct):
    """A file that is GPU code itself."""

    name: str
    size: Bytes
    kind: CodeFileKind
    architectures: tuple[InspectedCode, ...]


class InspectedInput(Struct):
    """One path."""

    path: str
    kind: ArtifactKind
    libraries: tuple[InspectedLibrary, ...]
    files: tuple[InspectedFile, ...]
    skipped: tuple[Skipped, ...]


class TailoredTotal(Struct):
    """About what tailoring for one GPU would save; bytes."""

    gpu: Capability
    saved: int
    saved_only_with_nvidia: int
    saved_as_zeros: Annotated[int, Meta(description="in addition, what stays as zeros; of an image, of it")]
    saved_by_no_lto: Annotated[int, Meta(description="in addition")]
    only_ptx: Annotated[int, Meta(description="libraries that have no machine code for it")]


class InspectTotals(Struct):
    """Everything together."""

    libraries: int
    libraries_with_gpu_code: int
    files: int
    files_size: Bytes
    size: Bytes
    containers: int
    images: int
    stored: Bytes
    raw: Annotated[int, Meta(description="bytes, unpacked")]
    architectures: tuple[InspectedCode, ...]
    tailored: tuple[TailoredTotal, ...]


class InspectDocument(Struct):
    """What was found, and what the GPUs do with it."""

    devices: Annotated[tuple[Capability, ...], Meta(description="the GPUs of --gpu")] = field(name="gpus")
    inputs: tuple[InspectedInput, ...]
    droppable: tuple[Droppable, ...]
    totals: InspectTotals
    kernels: Annotated[
        tuple[KernelRow, ...], Meta(description="with --kernels: functions of one name or template")
    ] = ()
    unused: Annotated[tuple[UnusedCode, ...], Meta(description="with --unused: what no GPU loads, and why")] = ()
    loaded: Annotated[tuple[Loaded, ...], Meta(description="with --unused: what each known GPU would load")] = ()


def inspect_document(inspection: Inspection, kernels: Sequence[KernelRow] | None = None) -> InspectDocument:
    """The document of an inspection; with these of its kernels only, if any are given."""
    inputs = [
        document(InspectedInput, report, libraries=[_library(inspection, library) for library in report.libraries])
        for report in inspection.artifacts
    ]
    rows = inspection.kernels if kernels is None else kernels
    return document(InspectDocument, inspection, inputs=inputs, totals=_totals(inspection), kernels=rows)


def _library(inspection: Inspection, library: LibraryReport) -> InspectedLibrary:
    gpus = [_on_gpu(inspection, library, device) for device in inspection.devices if library.has_code]
    return document(InspectedLibrary, library, places=_places(library), gpus=gpus)


def _on_gpu(inspection: Inspection, library: LibraryReport, device: Capability) -> LibraryOnGpu:
    answer = gpu_fit(library, device, inspection.rules)
    return document(
        LibraryOnGpu,
        answer,
        through=str(answer.code) if answer.code else None,
        containers={fit.value: answer.containers.get(fit, 0) for fit in Fit},
        saved=inspection.saved(library, device),
    )


def _places(library: LibraryReport) -> Sequence[InspectedPlace]:
    places: dict[tuple[str, Reference, bool], InspectedPlace] = {}
    for group in library.container_groups:
        key = (group.section, group.reference, group.bare)
        place = places.setdefault(key, InspectedPlace(*key))
        place.containers += group.containers
        place.stored += group.stored
    return [*places.values()]


def _totals(inspection: Inspection) -> InspectTotals:
    libraries, files = inspection.libraries, inspection.files
    return document(
        InspectTotals,
        inspection,
        libraries=len(libraries),
        libraries_with_gpu_code=sum(library.has_code for library in libraries),
        files=len(files),
        files_size=sum(file.size for file in files),
        size=sum(library.size for library in libraries),
        containers=sum(library.containers for library in libraries),
        images=sum(library.images for library in libraries),
        stored=sum(library.stored for library in libraries),
        raw=sum(library.raw for library in libraries),
        tailored=[_tailored(inspection, device) for device in inspection.devices],
    )


def _tailored(inspection: Inspection, device: Capability) -> TailoredTotal:
    asked = inspection.saved_in_all(device, proprietary=True)
    return TailoredTotal(
        device,
        inspection.saved_in_all(device, proprietary=False) + asked,
        asked,
        inspection.zeroed_in_all(device),
        inspection.lto_in_all(device),
        inspection.only_ptx(device),
    )
