"""Reads libraries on all cores; each is opened and scanned once, whatever is wanted of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import SegmentType
from torchtailor.code.binary.inflate import InflateSource
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.files import CodeFile, images_of, is_code_file
from torchtailor.code.gpucode.foreign import foreign_code
from torchtailor.code.gpucode.report import ImageGroup, LibraryReport, summarise
from torchtailor.code.gpucode.scan import LibraryCode, scan_elf
from torchtailor.core.cgroups import available_cores
from torchtailor.core.errors import BadInputError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress, followed
from torchtailor.trees.artifact.libraries import LibraryFile, is_shared_name, why_not_cut
from torchtailor.verification.inspection.kernels import KernelRow, host_functions, read_kernels
from torchtailor.verification.inspection.parts import CONTAINERS, ByteClass, ByteSpan, spans_of
from torchtailor.verification.inspection.unused import CodeUse, code_use
from torchtailor.workload.host_table import host_table

Parts = tuple[tuple[ByteClass, str, int, int | None], ...]  # class, architecture, bytes, packed bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of libraries."""

    report: bool = False  # their GPU code, as `inspect` tells it
    parts: bool = False  # what each of their bytes is
    kernels: bool = False
    use: bool = False  # by GPUs


@dataclass(frozen=True, slots=True)
class ReadLibrary:
    """What was wanted of a library."""

    report: LibraryReport | None = None
    file: CodeFile | None = None  # GPU code that it is itself, or has for GPUs of other makers
    parts: Parts = ()
    kernels: tuple[KernelRow, ...] = ()
    use: CodeUse | None = None
    error: BadInputError | None = None  # it could not be read


def read_libraries(
    libraries: Sequence[LibraryFile],
    wanted: Wanted,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[LibraryFile, ReadLibrary]]:
    """Libraries and files of GPU code, on all cores; the work has begun when this returns."""
    progress = progress or Progress()
    progress.begin("Reading libraries", sum(library.size for library in libraries))
    work = run_all(partial(_read, wanted), libraries, processes=processes or available_cores())
    return followed(libraries, work, progress)


def _read(wanted: Wanted, library: LibraryFile) -> ReadLibrary:
    try:
        if is_code_file(library.name):
            return ReadLibrary(file=library.code(), kernels=_kernels_of_file(library) if wanted.kernels else ())
        with library.open() as source:
            elf = ElfFile(source)
            source.verify()
            return _read_elf(wanted, library, elf, source)
    except BadInputError as error:
        return ReadLibrary(error=type(error)(error.message, error.hint))  # without the frames that hold the file
    except OSError as error:
        return ReadLibrary(error=BadInputError(f"{library.name} cannot be read: {error.strerror}."))


def _kernels_of_file(library: LibraryFile) -> tuple[KernelRow, ...]:
    """The functions of a file that is GPU code itself."""
    with library.open() as source:
        return tuple(read_kernels(source, library.name, images_of(library.name, source, library.size)))


def _read_elf(wanted: Wanted, library: LibraryFile, elf: ElfFile, source: ByteSource) -> ReadLibrary:
    name = library.name
    code, foreign = scan_elf(elf, texts=wanted.report), foreign_code(elf)
    return ReadLibrary(
        _report(name, elf, code) if wanted.report else None,
        CodeFile.of_others(name, library.size, foreign),
        _named_parts(_parts(spans_of(elf, code), source), foreign) if wanted.parts else (),
        (*read_kernels(source, name, code.images), *host_functions(elf, name)) if wanted.kernels else (),
        code_use(source, name, code) if wanted.use and code.containers else None,
    )


def _report(name: str, elf: ElfFile, code: LibraryCode) -> LibraryReport:
    report = summarise(name, code)
    if table := host_table(elf):
        report = replace(report, hot=sum(load.file_size for load in elf.loads) + table.hot_size, cold=table.cold_size)
    program = any(segment.type == SegmentType.INTERP for segment in elf.segments)
    return replace(report, program=program, not_cut="" if is_shared_name(name) else why_not_cut(elf))


def _parts(spans: Iterable[ByteSpan], source: ByteSource) -> Parts:
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


def in_proportion(packed: int | None, sizes: Collection[int]) -> Iterator[int | None]:
    """What each part of something takes of its packed bytes: together all of them."""
    whole = sum(sizes) or 1
    for start, end in pairwise(accumulate(sizes, initial=0)):
        yield None if packed is None else packed * end // whole - packed * start // whole


def _named_parts(parts: Parts, groups: Iterable[ImageGroup]) -> Parts:
    """The same with code for other makers' GPUs by architecture, which the bytes of its sections only hold."""
    sizes = {group.label: group.stored for group in groups}
    found = []
    for kind, code, size, packed in parts:
        if kind is not ByteClass.GPU or code != CONTAINERS:
            found.append((kind, code, size, packed))
            continue
        named = {label: stored for label, stored in sizes.items() if sum(sizes.values()) <= size}
        named[CONTAINERS] = size - sum(named.values())
        shares = in_proportion(packed, named.values())
        found += [(kind, label, stored, share) for (label, stored), share in zip(named.items(), shares, strict=True)]
    return tuple(part for part in found if part[2])
