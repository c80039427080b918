"""Reads the libraries of an artifact, and compares each with stock's, in as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtailor.code.binary.elf import ElfFile, UnsupportedElfError
from torchtailor.code.binary.elf_headers import FileType
from torchtailor.code.binary.instructions import instructions_sha256
from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.kernels import may_have_kernels
from torchtailor.code.gpucode.report import LibraryReport, summarise
from torchtailor.code.gpucode.runnable import DriverReading
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.cgroups import available_cores
from torchtailor.core.errors import BadInputError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, Unpacked, unpacked
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.trees.wheels.record import FileHash
from torchtailor.verification.static.coverage import CodeCoverage, compare_code
from torchtailor.verification.static.elf_facts import ElfFacts, read_elf
from torchtailor.verification.static.packed import NOTHING_PACKED, OpenPacks, PackedCode
from torchtailor.verification.static.whole import PagedFacts, whole_library

if TYPE_CHECKING:
    from torchtailor.code.hostcode.analyse import HostCode


@dataclass(frozen=True)
class LibraryFacts:
    """All that was read of one library; what could not be read has `problem` and nothing else."""

    file: LibraryFile
    sha256: str = ""
    elf: ElfFacts | None = None
    gpu: LibraryReport | None = None
    host: HostCode | None = None
    packed: PackedCode = NOTHING_PACKED  # what was moved out of it
    pages: PagedFacts | None = None  # where it was cut to touched pages
    kernels: bool = True  # False where its GPU code is images without a single kernel
    instructions: str = ""  # the hash of its host code; empty for what is not linked
    problem: str = ""
    foreign: bool = False  # whole, but for another processor: a payload, not something this Python loads

    @property
    def name(self) -> str:
        return self.file.name


@dataclass(frozen=True)
class LibraryComparison:
    """A library of stock, and what the artifact's of the same name has of it."""

    stock: LibraryFacts
    coverage: CodeCoverage | None = None  # None where the GPUs use nothing of stock's
    same_instructions: bool = False


@dataclass(frozen=True)
class LibraryRead:
    """One library of the artifact; with a stock, how it compares."""

    facts: LibraryFacts
    comparison: LibraryComparison | None = None


@dataclass(frozen=True)
class _ReadJob:
    """One library to read; with `stock`, to compare with it by how drivers read both."""

    library: LibraryFile
    recorded: FileHash | None
    stock: LibraryFile | None = None
    stock_recorded: FileHash | None = None
    readings: tuple[DriverReading, ...] = ()
    packs: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        return self.library.size


def read_libraries(
    artifact: Artifact,
    stock: Artifact | None,
    readings: Sequence[DriverReading],
    progress: Progress,
    packs: tuple[Path, ...] = (),
) -> tuple[LibraryRead, ...]:
    """Read every library of the artifact, in its order; its host code is read later, where it must be."""
    partners = _partners(artifact, stock)
    jobs = []
    for library in artifact.libraries:
        other = partners.get(library.name)
        stock_recorded = stock.recorded_hash(other) if stock and other else None
        recorded = artifact.recorded_hash(library)
        jobs.append(_ReadJob(library, recorded, other, stock_recorded, tuple(readings), packs))
    progress.begin("Reading libraries", sum(job.size for job in jobs))
    found: dict[int, LibraryRead] = {}
    numbers = {id(job): number for number, job in enumerate(jobs)}
    for job, read in run_all(_read, jobs, processes=available_cores()):
        progress.reading(job.library.short_name)
        progress.advance(job.size)
        found[numbers[id(job)]] = read
    return tuple(found[number] for number in range(len(jobs)))


def read_rest(artifact: Artifact, stock: Artifact, progress: Progress) -> tuple[LibraryFacts, ...]:
    """The libraries of stock that the artifact does not have."""
    here = _partners(artifact, stock)
    names = {library.name for library in artifact.libraries}
    rest = [library for name, library in here.items() if name not in names]
    jobs = [_ReadJob(library, stock.recorded_hash(library)) for library in rest]
    return tuple(read.facts for _, read in run_all(_read, jobs, processes=available_cores()))


def _partners(artifact: Artifact, stock: Artifact | None) -> dict[str, LibraryFile]:
    if stock is None:
        return {}
    if artifact.kind is stock.kind is ArtifactKind.LIBRARY:  # whatever they are called: these two are compared
        name = artifact.libraries[0].name
        return {name: replace(stock.libraries[0], name=name)}
    return {library.name: library for library in stock.libraries}


def _read(job: _ReadJob) -> LibraryRead:
    """All facts of one library, or the problem with it."""
    try:
        with unpacked(job.library, job.recorded) as file:
            facts = _facts(job.library, file, job.packs)
            return LibraryRead(facts, _compare(job, facts, file) if job.stock else None)
    except UnsupportedElfError as error:
        return LibraryRead(LibraryFacts(job.library, problem=error.message, foreign=True))
    except BadInputError as error:
        return LibraryRead(LibraryFacts(job.library, problem=error.message))
    except OSError as error:
        return LibraryRead(LibraryFacts(job.library, problem=f"it cannot be read: {error.strerror}"))


def _compare(job: _ReadJob, facts: LibraryFacts, file: Unpacked) -> LibraryComparison:
    assert job.stock is not None
    with unpacked(job.stock, job.stock_recorded) as other:
        stock = _facts(job.stock, other)
        coverage = compare_code(job.library.name, other.path, file.path, job.readings, job.packs)
    return LibraryComparison(stock, coverage, bool(stock.instructions) and stock.instructions == facts.instructions)


def _facts(library: LibraryFile, file: Unpacked, packs: Sequence[Path] = ()) -> LibraryFacts:
    with (
        whole_library(file.path, packs) as (whole, pages),
        open_source(whole) as source,
        OpenPacks.of(packs) as opened,
    ):
        elf = ElfFile(source)
        facts = read_elf(elf)
        code = scan_elf(elf)
        gpu = summarise(library.name, code)
        _, packed = opened.code(code, source)
        kernels = any(may_have_kernels(source, image) for image in code.images)
        linked = elf.header.type is not FileType.RELOCATABLE
        known = linked and not (pages and (pages.missing or pages.problem))
        instructions = instructions_sha256(elf) if known else ""
    found = LibraryFacts(library, file.sha256, facts, gpu, packed=packed, kernels=kernels, instructions=instructions)
    return replace(found, pages=pages)
