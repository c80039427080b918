"""Inspects libraries, wheels, folders and environments on all cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torchtailor.advise.host.targets import read_gpus
from torchtailor.catalog import Capability, Catalog, load_catalog
from torchtailor.code.binary.elf import FETCH_AGAIN, NotElfError, UnsupportedElfError
from torchtailor.core.errors import BadInputError
from torchtailor.core.progress import Progress
from torchtailor.surgery.result import LibraryResult
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.conda import opened_artifact
from torchtailor.trees.artifact.drops import deciders_of, files_of
from torchtailor.trees.artifact.libraries import LibraryFile, is_shared_name
from torchtailor.trees.licences import is_proprietary, needs_nvidia_option
from torchtailor.trees.wheels.metadata import Metadata
from torchtailor.verification.inspection.inspection import ArtifactReport, Inspection, Skipped
from torchtailor.verification.inspection.read import ReadLibrary, Wanted, read_libraries


def inspect(
    paths: Path | str | Artifact | Sequence[Path | str | Artifact],
    *,
    gpus: str | Iterable[str | Capability] = (),
    kernels: bool = False,
    use: bool = False,
    catalog: Catalog | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read the GPU code of all that the paths hold, and see it for some GPUs; with `kernels` also the functions in it,
    with `use` what known GPUs load of it.

    What cannot be read is an error where the user named that very file, and is reported as skipped where it was
    found in a wheel, a folder or an environment.
    """
    catalog = catalog or load_catalog()
    seen_for = tuple(catalog.gpus[device] for device in read_gpus(gpus, catalog))
    named = [paths] if isinstance(paths, Path | str | Artifact) else paths
    wanted = Wanted(report=True, kernels=kernels, use=use)
    with ExitStack() as stack:
        artifacts = [
            path if isinstance(path, Artifact) else stack.enter_context(opened_artifact(Path(path))) for path in named
        ]
        libraries = [file for artifact in artifacts for file in (*artifact.libraries, *artifact.code_files)]
        work = read_libraries(libraries, wanted, processes=processes, progress=progress)
        known = [(artifact, dict(files_of(artifact)), artifact.packages) for artifact in artifacts]  # meanwhile
        read = dict(work)
        reports = []
        for artifact, every, owners in known:
            report = _collect(artifact, every, owners, read)
            cuts = _cuts(artifact, [gpu.capability for gpu in seen_for], catalog, processes, progress)
            reports.append(replace(report, cuts=cuts))
        return Inspection(tuple(reports), seen_for, catalog.rules)


def _cuts(
    artifact: Artifact,
    gpus: Sequence[Capability],
    catalog: Catalog,
    processes: int | None,
    progress: Progress | None,
) -> dict[Capability, Mapping[str, LibraryResult]]:
    """The dry run for each GPU, where there is one."""
    if not gpus:
        return {}
    from torchtailor.verification.inspection.savings import cut_for_savings

    cuts = ((gpu, cut_for_savings(artifact, gpu, catalog, processes, progress)) for gpu in gpus)
    return {gpu: cut for gpu, cut in cuts if cut is not None}


def _collect(
    artifact: Artifact,
    every: Mapping[str, int],
    owners: Mapping[str, tuple[Metadata, ...]],
    read: Mapping[LibraryFile, ReadLibrary],
) -> ArtifactReport:
    libraries, skipped = [], []
    files = []
    for file in artifact.code_files:
        result = read[file]
        if result.file:
            files.append(result.file)
        elif result.error:
            skipped.append(Skipped(file.name, result.error.message, damaged=True))
        elif file.name.endswith(".cubin"):
            skipped.append(Skipped(file.name, "It is not a cubin.", damaged=False))
    alone = artifact.kind is ArtifactKind.LIBRARY
    for library in artifact.libraries:
        result = read[library]
        if report := result.report:
            if other := result.file:
                files.append(replace(other, name=str(artifact.path)) if alone else other)
            if not (alone or report.has_code or is_shared_name(library.name)):
                continue  # a program without GPU code, which no cut looks at either
            packages = owners.get(library.name) or (None,)
            proprietary = any(needs_nvidia_option(library.name, package) for package in packages)
            report = replace(report, proprietary=proprietary)
            libraries.append(replace(report, name=str(artifact.path)) if alone else report)  # two may be named alike
        elif (error := result.error) and alone:
            named = error.message if str(artifact.path) in error.message else f"{artifact.path}: {error.message}"
            raise type(error)(named, error.hint or FETCH_AGAIN)
        elif error:
            foreign = isinstance(error, NotElfError | UnsupportedElfError)
            skipped.append(Skipped(library.name, error.message, damaged=not foreign))
    if artifact.kind is ArtifactKind.WHEEL and not every:
        raise BadInputError(
            f"{artifact.path} is an empty zip file, not a wheel.",
            "Fetch the wheel again and compare its hash with the index's.",
        )
    nvidias = frozenset(name for name, whose in owners.items() if any(map(is_proprietary, whose)))
    mine = [(library.name, read[library]) for library in artifact.libraries]
    return ArtifactReport(
        artifact.shown,
        artifact.kind,
        tuple(libraries),
        tuple(skipped),
        tuple(files),
        every,
        deciders_of(artifact, every),
        nvidias,
        tuple(row for library in (*artifact.libraries, *artifact.code_files) for row in read[library].kernels),
        tuple((name, one.use) for name, one in mine if one.use),
    )
