"""Inspects libraries, wheels, folders and environments on all cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torchtailor.advise.host.targets import read_gpus
from torchtailor.catalog import Capability, Catalog, load_catalog
from torchtailor.code.binary.elf import FETCH_AGAIN, ElfFile, NotElfError, UnsupportedElfError
from torchtailor.code.binary.elf_headers import SegmentType
from torchtailor.code.gpucode.files import CodeFile, is_code_file
from torchtailor.code.gpucode.foreign import foreign_code
from torchtailor.code.gpucode.report import LibraryReport, summarise
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.cgroups import available_cores
from torchtailor.core.errors import BadInputError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress, followed
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.conda import opened_artifact
from torchtailor.trees.artifact.drops import files_of
from torchtailor.trees.artifact.libraries import LibraryFile, is_shared_name, why_not_cut
from torchtailor.trees.licences import is_proprietary, needs_nvidia_option
from torchtailor.verification.inspection.inspection import ArtifactReport, Inspection, Skipped
from torchtailor.workload.host_table import host_table

_Library = tuple[LibraryReport, CodeFile | None]  # and its code for GPUs of other makers
_Found = _Library | CodeFile | BadInputError | None  # None: the file is not what its name says


def inspect(
    paths: Path | str | Artifact | Sequence[Path | str | Artifact],
    *,
    gpus: str | Iterable[str | Capability] = (),
    catalog: Catalog | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read the GPU code of all that the paths hold, and see it for some GPUs.

    What cannot be read is an error where the user named that very file, and is reported as skipped where it was
    found in a wheel, a folder or an environment.
    """
    catalog = catalog or load_catalog()
    seen_for = tuple(catalog.gpus[device] for device in read_gpus(gpus, catalog))
    named = [paths] if isinstance(paths, Path | str | Artifact) else paths
    progress = progress or Progress()
    with ExitStack() as stack:
        artifacts = [
            path if isinstance(path, Artifact) else stack.enter_context(opened_artifact(Path(path))) for path in named
        ]
        libraries = [file for artifact in artifacts for file in (*artifact.libraries, *artifact.code_files)]
        progress.begin("Reading libraries", sum(library.size for library in libraries))
        results: dict[int, _Found] = {}
        work = run_all(_read, libraries, processes=processes or available_cores())
        for library, result in followed(libraries, work, progress):
            results[id(library)] = result
        return Inspection(tuple(_collect(artifact, results) for artifact in artifacts), seen_for, catalog.rules)


def _collect(artifact: Artifact, results: dict[int, _Found]) -> ArtifactReport:
    libraries, skipped = [], []
    files = []
    for file in artifact.code_files:
        result = results[id(file)]
        if isinstance(result, CodeFile):
            files.append(result)
        elif isinstance(result, BadInputError):
            skipped.append(Skipped(file.name, result.message, damaged=True))
        elif file.name.endswith(".cubin"):
            skipped.append(Skipped(file.name, "It is not a cubin.", damaged=False))
    alone = artifact.kind is ArtifactKind.LIBRARY
    for library in artifact.libraries:
        result = results[id(library)]
        if isinstance(result, tuple):
            report, other = result
            if other:
                files.append(replace(other, name=str(artifact.path)) if alone else other)
            if not (alone or report.has_code or is_shared_name(library.name)):
                continue  # a program without GPU code, which no cut looks at either
            packages = artifact.packages.get(library.name) or (None,)
            proprietary = any(needs_nvidia_option(library.name, package) for package in packages)
            report = replace(report, proprietary=proprietary)
            libraries.append(replace(report, name=str(artifact.path)) if alone else report)  # two may be named alike
        elif isinstance(result, BadInputError) and alone:
            named = result.message if str(artifact.path) in result.message else f"{artifact.path}: {result.message}"
            raise type(result)(named, result.hint or FETCH_AGAIN)
        elif isinstance(result, BadInputError):
            foreign = isinstance(result, NotElfError | UnsupportedElfError)
            skipped.append(Skipped(library.name, result.message, damaged=not foreign))
    every = dict(files_of(artifact))
    if artifact.kind is ArtifactKind.WHEEL and not every:
        raise BadInputError(
            f"{artifact.path} is an empty zip file, not a wheel.",
            "Fetch the wheel again and compare its hash with the index's.",
        )
    nvidias = frozenset(name for name, owners in artifact.packages.items() if any(map(is_proprietary, owners)))
    path, kind = artifact.shown, artifact.kind
    return ArtifactReport(path, kind, tuple(libraries), tuple(skipped), tuple(files), every, nvidias)


def _read(library: LibraryFile) -> _Found:
    try:
        if is_code_file(library.name):
            return library.code()
        with library.open() as source:
            elf = ElfFile(source)
            source.verify()
            report = summarise(library.name, scan_elf(elf, texts=True))
            if table := host_table(elf):
                hot = sum(load.file_size for load in elf.loads)
                report = replace(report, hot=hot, cold=table.cold_size)
            program = any(segment.type == SegmentType.INTERP for segment in elf.segments)
            not_cut = "" if is_shared_name(library.name) else why_not_cut(elf)
            report = replace(report, program=program, not_cut=not_cut)
            return report, CodeFile.of_others(library.name, library.size, foreign_code(elf))
    except BadInputError as error:
        return type(error)(error.message, error.hint)  # without the frames that hold the file
    except OSError as error:
        return BadInputError(f"{library.name} cannot be read: {error.strerror}.")
