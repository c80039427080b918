"""Measures libraries, wheels, folders, environments and images: every byte once, by package, file, class and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from torchtailor.code.binary.elf import NotElfError
from torchtailor.core.documents import Bytes
from torchtailor.core.errors import BadInputError
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.drops import files_of
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.parts import ByteClass, class_of_file
from torchtailor.verification.inspection.read import Parts, ReadLibrary, Wanted, in_proportion, read_libraries


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
    skipped: tuple[str, ...] = ()  # what could not be read, and is counted as other files

    @classmethod
    def of(cls, name: str, rows: Iterable[SizeRow], read: Mapping[LibraryFile, ReadLibrary]) -> Sizes:
        """What was found of an artifact's libraries, and the rows of all of its files."""
        return cls(
            name,
            tuple(rows),
            tuple(row for one in read.values() for row in one.kernels),
            tuple(_skipped(library, one.error) for library, one in read.items() if _matters(one.error)),
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


def measure(
    artifact: Artifact, *, kernels: bool = False, processes: int | None = None, progress: Progress | None = None
) -> Sizes:
    """Read all of an artifact, and count every byte of it once; with `kernels` also the functions inside GPU code."""
    libraries = (*artifact.libraries, *artifact.code_files)
    read = measure_libraries(libraries, kernels=kernels, processes=processes, progress=progress)
    owners = {name: packages[0].name for name, packages in artifact.packages.items() if packages}
    rows = [row for library in libraries for row in rows_of(owners.get(library.name, ""), library, read[library])]
    rows += _other_rows(artifact, owners, {(library.owner, library.name) for library in libraries})
    return Sizes.of(artifact.shown, rows, read)


def measure_libraries(
    libraries: Sequence[LibraryFile],
    *,
    kernels: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> dict[LibraryFile, ReadLibrary]:
    """Libraries and files of GPU code, as `rows_of` takes them."""
    return dict(read_libraries(libraries, Wanted(parts=True, kernels=kernels), processes=processes, progress=progress))


def rows_of(package: str, library: LibraryFile, read: ReadLibrary) -> Iterator[SizeRow]:
    """The rows of a library; of a file that could not be read, or is GPU code itself, without the classes of its
    bytes."""
    for kind, code, size, packed in read.parts or _whole_file(library, read):
        yield SizeRow(package, library.name, kind, code, size, packed)


def _whole_file(library: LibraryFile, read: ReadLibrary) -> Parts:
    """A cubin, a static library: its GPU code by architecture, and the rest."""
    packed = library.member.packed_size if library.member else None
    if read.error:
        return ((class_of_file(library.name), "", library.size, packed),)
    groups = read.file.architectures if read.file else ()
    parts = [(ByteClass.GPU, group.label, min(group.stored, library.size)) for group in groups]
    parts.append((ByteClass.OTHER, "", library.size - sum(size for *_, size in parts)))
    shares = in_proportion(packed, [size for *_, size in parts])
    return tuple((*part, share) for part, share in zip(parts, shares, strict=True) if part[2])


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


def _skipped(library: LibraryFile, error: BadInputError | None) -> str:
    text = error.message if error else ""
    return text if library.name in text else f"{library.name}: {text}"


def _matters(error: BadInputError | None) -> bool:
    """Whether a file could not be read; a large one that might have been a program, and is none, could."""
    return error is not None and not isinstance(error, NotElfError)
