"""Measures libraries, wheels, folders, environments and images: every byte once, by package, file, class and GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from torchtailor.code.binary.elf import ElfFile, NotElfError, UnsupportedElfError
from torchtailor.code.binary.inflate import InflateSource
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.files import CodeFile, is_code_file
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.cgroups import available_cores
from torchtailor.core.documents import Bytes
from torchtailor.core.errors import BadInputError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.drops import files_of
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.verification.inspection.kernels import KernelRow, host_functions, read_kernels
from torchtailor.verification.inspection.parts import ByteClass, ByteSpan, class_of_file, spans_of
from torchtailor.verification.inspection.unused import CodeUse, code_use


class SizeRow(msgspec.Struct, frozen=True):
    """The bytes of one class in one file."""

    package: str  # empty where no package lists the file
    file: str
    kind: ByteClass
    code: str  # of GPU code, the architecture
    size: Bytes
    packed: int | None = None  # as compressed in the wheel


class Sizes(msgspec.Struct, frozen=True, dict=True):
    """Where the bytes of one artifact are."""

    name: str
    rows: tuple[SizeRow, ...]
    kernels: tuple[KernelRow, ...] = ()
    use: Mapping[str, CodeUse] = {}  # by library
    skipped: tuple[str, ...] = ()  # what could not be read, and is counted as other files

    @classmethod
    def of(cls, name: str, rows: Iterable[SizeRow], measured: Mapping[LibraryFile, MeasuredLibrary]) -> Sizes:
        """What was found of an artifact's libraries, and the rows of all of its files."""
        return cls(
            name,
            tuple(rows),
            tuple(row for one in measured.values() for row in one.kernels),
            {library.name: one.use for library, one in measured.items() if one.use},
            tuple(one.skipped for one in measured.values() if one.skipped),
        )

    @cached_property
    def total(self) -> int:
        return sum(row.size for row in self.rows)

    @cached_property
    def packed(self) -> int | None:
        """Of wheels, their own size."""
        sizes = [row.packed for row in self.rows]
        return sum(size for size in sizes if size is not None) if any(size is not None for size in sizes) else None

    def by(self, key: Callable[[SizeRow], str]) -> Mapping[str, SizeTotal]:
        """Sums by what `key` says of a row; an empty word leaves a row out."""
        sums: dict[str, SizeTotal] = {}
        for row in self.rows:
            if name := key(row):
                sums[name] = sums.get(name, SizeTotal()).plus(row)
        return sums


class SizesDocument(msgspec.Struct, frozen=True):
    """Where the bytes of an artifact are: a row for each file, class and architecture."""

    name: str
    size: Bytes
    packed: int | None
    rows: tuple[SizeRow, ...]
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, sizes: Sizes) -> SizesDocument:
        return cls(sizes.name, sizes.total, sizes.packed, sizes.rows, sizes.skipped)


@dataclass(frozen=True, slots=True)
class SizeTotal:
    """Bytes on disk, and as compressed in wheels."""

    size: int = 0
    packed: int | None = None

    def plus(self, row: SizeRow) -> SizeTotal:
        packed = self.packed if row.packed is None else (self.packed or 0) + row.packed
        return SizeTotal(self.size + row.size, packed)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of GPU code beyond its size."""

    kernels: bool = False
    use: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """A library to measure."""

    library: LibraryFile
    wanted: Wanted

    @property
    def size(self) -> int:
        return self.library.size


@dataclass(frozen=True, slots=True)
class MeasuredLibrary:
    """The bytes of one library."""

    parts: tuple[tuple[ByteClass, str, int, int | None], ...]  # class, architecture, bytes, packed bytes
    kernels: tuple[KernelRow, ...] = ()
    use: CodeUse | None = None
    skipped: str = ""


def measure(
    artifact: Artifact, wanted: Wanted | None = None, *, processes: int | None = None, progress: Progress | None = None
) -> Sizes:
    """Read all of an artifact, and count every byte of it once."""
    libraries = (*artifact.libraries, *artifact.code_files)
    measured = measure_libraries(libraries, wanted, processes=processes, progress=progress)
    owners = {name: packages[0].name for name, packages in artifact.packages.items() if packages}
    rows = [
        row for library in libraries for row in rows_of(owners.get(library.name, ""), library.name, measured[library])
    ]
    rows += _other_rows(artifact, owners, {(library.owner, library.name) for library in libraries})
    return Sizes.of(artifact.shown, rows, measured)


def measure_libraries(
    libraries: Iterable[LibraryFile],
    wanted: Wanted | None = None,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> dict[LibraryFile, MeasuredLibrary]:
    """Libraries and files of GPU code, on all cores."""
    jobs = [_Job(library, wanted or Wanted()) for library in libraries]
    progress = progress or Progress()
    progress.begin("Measuring libraries", sum(job.size for job in jobs))
    measured = {}
    for job, result in run_all(_measure, jobs, processes=processes or available_cores()):
        measured[job.library] = result
        progress.advance(job.size)
    return measured


def rows_of(package: str, file: str, library: MeasuredLibrary) -> Iterator[SizeRow]:
    """The rows of a measured library."""
    for kind, code, size, packed in library.parts:
        yield SizeRow(package, file, kind, code, size, packed)


def _other_rows(artifact: Artifact, owners: Mapping[str, str], read: set[tuple[str, str]]) -> Iterator[SizeRow]:
    """Files without machine code; of a wheel also what the zip itself takes."""
    for wheel in artifact.wheels:
        with WheelArchive(wheel) as archive:
            rest = archive.size
            package = next(
                (owners[name] for file in archive.files if (name := installed_path(file.name)) in owners), ""
            )
            for member in archive.files:
                rest -= member.packed_size
                name = installed_path(member.name)
                if (wheel.name, name) not in read:
                    yield SizeRow(package, name, class_of_file(name), "", member.size, member.packed_size)
            yield SizeRow(package, wheel.name, ByteClass.ZIP, "", 0, rest)
    if artifact.wheels or artifact.kind is ArtifactKind.LIBRARY:
        return
    for name, size in files_of(artifact):
        if ("", installed_path(name)) not in read and ("", name) not in read:
            yield SizeRow(owners.get(installed_path(name), ""), name, class_of_file(name), "", size)


def _measure(job: _Job) -> MeasuredLibrary:
    library = job.library
    try:
        if is_code_file(library.name):
            return _measure_code_file(library)
        with library.open() as source:
            elf = ElfFile(source)
            source.verify()
            code = scan_elf(elf)
            kernels = (
                (*read_kernels(source, library.name, code), *host_functions(elf, library.name))
                if job.wanted.kernels
                else ()
            )
            use = code_use(source, library.name, code) if job.wanted.use and code.containers else None
            return MeasuredLibrary(_parts(spans_of(elf, code), source), kernels, use)
    except NotElfError:  # a large file that might have been a program
        return _unread(library, "")
    except UnsupportedElfError as error:
        return _unread(library, f"{library.name}: {error.message}")
    except BadInputError as error:
        return _unread(library, f"{library.name}: {error.message}")
    except OSError as error:
        return _unread(library, f"{library.name} cannot be read: {error.strerror}.")


def _parts(spans: Iterable[ByteSpan], source: ByteSource) -> tuple[tuple[ByteClass, str, int, int | None], ...]:
    sizes: Counter[tuple[ByteClass, str]] = Counter()
    packed: Counter[tuple[ByteClass, str]] = Counter()
    wheel = source if isinstance(source, InflateSource) else None
    before = 0
    for span in spans:
        key = (span.kind, span.code)
        sizes[key] += span.end - span.start
        if wheel:
            reached = wheel.packed_at(span.end)
            packed[key] += reached - before
            before = reached
    return tuple((*key, size, packed[key] if wheel else None) for key, size in sizes.items())


def _measure_code_file(library: LibraryFile) -> MeasuredLibrary:
    """A cubin, a static library: its GPU code by architecture, and the rest."""
    found = library.code()
    packed = library.member.packed_size if library.member else None
    groups = found.architectures if isinstance(found, CodeFile) else ()
    sizes = [(ByteClass.GPU, group.label, min(group.stored, library.size)) for group in groups]
    rest = library.size - sum(size for *_, size in sizes)
    sizes.append((ByteClass.OTHER, "", rest))
    parts = [
        (kind, code, size, None if packed is None else packed * size // max(library.size, 1))
        for kind, code, size in sizes
        if size
    ]
    return MeasuredLibrary(tuple(parts))


def _unread(library: LibraryFile, why: str) -> MeasuredLibrary:
    packed = library.member.packed_size if library.member else None
    return MeasuredLibrary(((class_of_file(library.name), "", library.size, packed),), skipped=why)
