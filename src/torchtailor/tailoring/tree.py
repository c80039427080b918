"""What holds for the files of every input: whose they are, which go, which lose symbol tables, what RECORD says.

A wheel, a folder, an environment and the layers of an image are each a `FileTree`.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torchtailor.code.gpucode.files import CodeFile
from torchtailor.core.disk import copy_file, hash_file
from torchtailor.core.trust import Sha256, Size
from torchtailor.surgery.cut import Cut, FilesLeftOut
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.trees.artifact.drops import Drops
from torchtailor.trees.artifact.installed import InstalledDistribution
from torchtailor.trees.artifact.libraries import LibraryFile, SharedFile
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.licences import is_proprietary, needs_nvidia_option
from torchtailor.trees.wheels.distribution import WheelDistribution
from torchtailor.trees.wheels.metadata import Metadata
from torchtailor.trees.wheels.record import FileHash, RecordRow
from torchtailor.workload.pack import PACK_FOLDER

_ONE = ("",)


@dataclass(frozen=True, slots=True)
class FileState:
    """The content of a file, by hash and size."""

    sha256: Sha256
    size: Size

    @classmethod
    def of(cls, path: Path, *, sizes: Iterable[int]) -> FileState | None:
        """The state of a file if it has one of these sizes; None if it has another or does not exist."""
        try:
            size = path.stat().st_size
            return cls(hash_file(path), size) if size in sizes else None
        except OSError:
            return None

    @classmethod
    def of_bytes(cls, data: bytes) -> FileState:
        return cls(hashlib.sha256(data).hexdigest(), len(data))

    def row(self, path: str) -> RecordRow:
        return RecordRow(path, FileHash.from_hex(self.sha256), self.size)


class Gone(Enum):
    """What a file is that is no longer in its place."""

    GONE = "gone"  # it was left out
    MOVED = "moved"  # a link leads to it


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a tree: what it says of itself, and the path of its .dist-info folder."""

    metadata: Metadata
    dist_info: str

    @property
    def site(self) -> str:
        """The folder that the paths in its RECORD are relative to."""
        return posixpath.dirname(self.dist_info) or "."


class FileTree(Protocol):
    """The files of an input, by path."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    def packages(self, path: str) -> Sequence[Package]:
        """The packages whose RECORD lists a file."""
        ...

    def code(self, path: str) -> CodeFile | None:
        """What a file of GPU code is; None for other files."""
        ...

    def head(self, path: str) -> bytes:
        """The beginning of a file that says what a rule of --drop goes by."""
        ...

    def shared(self, path: str) -> SharedFile:
        """What a shared library is."""
        ...

    @property
    def gives_sources(self) -> bool:
        """Whether modules of Python can be read."""
        ...

    def source(self, path: str) -> bytes:
        """The source of a module."""
        ...

    def is_plain(self, path: str) -> bool:
        """Whether there is a file, and no link on the way to it."""
        ...

    def changed_at(self, folder: str) -> int | None:
        """When something came to a folder or left it last, in nanoseconds; None where that is not known yet."""
        ...

    def installed(self, path: str) -> str:
        """Where a file is when the tree is installed."""
        ...

    def loose_packs(self, path: str) -> str:
        """The folder for packs of a library that no package lists."""
        ...

    def brings_back(self, path: str) -> str:
        """What brings a file back that was left out."""
        ...


class LocalTree:
    """A tree whose files can be opened at any time."""

    def file(self, path: str) -> LibraryFile:
        raise NotImplementedError

    def code(self, path: str) -> CodeFile | None:
        return self.file(path).code()

    def head(self, path: str) -> bytes:
        return self.file(path).head()

    def shared(self, path: str) -> SharedFile:
        with self.file(path).open() as source:
            return SharedFile.read(path, source)

    @property
    def gives_sources(self) -> bool:
        return True

    def source(self, path: str) -> bytes:
        file = self.file(path)
        if not file.size:
            return b""
        with file.open() as source:
            return bytes(source.read(0, source.size))

    def is_plain(self, path: str) -> bool:
        return True

    def changed_at(self, folder: str) -> int | None:
        return None

    def installed(self, path: str) -> str:
        return path

    def loose_packs(self, path: str) -> str:
        return PACK_FOLDER


@dataclass(frozen=True)
class InstalledTree(LocalTree):
    """A folder, or the site-packages of an environment."""

    folder: Path
    sizes: Mapping[str, int]
    owners: Mapping[str, tuple[InstalledDistribution, ...]] = field(default_factory=dict)

    def packages(self, path: str) -> Sequence[Package]:
        return [self.package(owner) for owner in self.owners.get(path, ())]

    def package(self, owner: InstalledDistribution) -> Package:
        return Package(owner.metadata, owner.dist_info.relative_to(self.folder).as_posix())

    def file(self, path: str) -> LibraryFile:
        place = self.folder / path
        return LibraryFile(path, "", place.stat().st_size, place)

    def recorded_sha256(self, path: str) -> str:
        """The SHA-256 of a file by RECORD, if nobody changed the file since its package was installed: it has the size
        that RECORD says, and RECORD was written after it. Else, or where packages differ, empty."""
        status = (self.folder / path).stat()
        hashes = {
            row.hash.digest.hex()
            if (row := owner.files[path]).hash
            and row.hash.algorithm == "sha256"
            and row.size == status.st_size
            and status.st_mtime_ns < owner.record_path.stat().st_mtime_ns
            else ""
            for owner in self.owners.get(path, ())
        }
        return hashes.pop() if len(hashes) == 1 else ""

    def code(self, path: str) -> CodeFile | None:
        return super().code(path) if (self.folder / path).is_file() else None

    def head(self, path: str) -> bytes:
        return super().head(path) if (self.folder / path).is_file() else b""

    def is_plain(self, path: str) -> bool:
        place = self.folder / path
        return place.resolve() == self.folder.resolve() / path

    def changed_at(self, folder: str) -> int | None:
        return (self.folder / folder).stat().st_mtime_ns

    def brings_back(self, path: str) -> str:
        return reinstalling(self, path) or "the stock folder"


@dataclass(frozen=True)
class WheelTree(LocalTree):
    """The files of a wheel, all of one package."""

    distribution: WheelDistribution

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {member.name: member.size for member in self.distribution.archive.files}

    @property
    def package(self) -> Package:
        return Package(self.distribution.metadata, self.distribution.dist_info)

    def packages(self, path: str) -> Sequence[Package]:
        return (self.package,)

    def file(self, path: str) -> LibraryFile:
        wheel, member = self.distribution.path, self.distribution.archive.members[path]
        return LibraryFile(path, wheel.name, member.size, wheel, member)

    def installed(self, path: str) -> str:
        return installed_path(path)

    def brings_back(self, path: str) -> str:
        stated = self.distribution.metadata
        return f"`pip install --force-reinstall --no-deps {stated.name}=={stated.version}`"


def reinstalling(tree: FileTree, path: str) -> str:
    """What brings a file of a package back; empty for others."""
    stated = next((package.metadata for package in tree.packages(path)), None)
    return f"installing {stated.name} {stated.version} again" if stated else ""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that comes with a cut: a pack, the hook, or what stands in for a file that was left out."""

    path: str  # in the tree
    content: Path | bytes
    state: FileState
    package: Package | None  # whose RECORD lists it

    @property
    def owner(self) -> str:
        """The dist-info folder of its package."""
        return self.package.dist_info if self.package else ""

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    def put(self, folder: Path) -> Path:
        """Write it into a folder, where it may lie already."""
        place = folder / posixpath.basename(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.content, bytes):
            place.write_bytes(self.content)
        elif self.content != place:
            copy_file(self.content, place)
            place.chmod(0o644)
        return place


def new_rows(added: Iterable[NewFile], package: Package) -> dict[str, RecordRow]:
    """The rows of files in the RECORD of their package."""
    own = [file for file in added if file.package == package]
    return {(path := posixpath.relpath(file.path, package.site)): file.state.row(path) for file in own}


def folders_above(path: str) -> Iterator[str]:
    """The folders that a file of a tree is in, the innermost first."""
    while path := posixpath.dirname(path):
        yield path


def remove_empty(root: Path, gone: Iterable[str]) -> None:
    """Remove the folders below a root that nothing is left in: Python would import one as a package without files."""
    for folder in sorted({parent for path in gone for parent in (root / path).parents}, reverse=True):
        if root in folder.parents:
            with suppress(OSError):
                folder.rmdir()


def is_refused(tree: FileTree, *names: str) -> bool:
    """Whether only --nvidia may cut a file, given all its names; of one that no package lists these decide."""
    listing: list[Metadata | None] = [package.metadata for path in names for package in tree.packages(path)]
    return any(needs_nvidia_option(path, metadata) for path in names for metadata in listing or [None])


def left_out_of(tree: FileTree, cut: Cut, drops: Drops | None = None, *, every: bool = False) -> FilesLeftOut:
    """The files that an output goes without; of NVIDIA's packages only with --nvidia. With `every`, also those that
    were never opened and would go to packs."""

    def read_code(path: str) -> CodeFile | None:
        return None if not cut.nvidia and is_refused(tree, path) else tree.code(path)

    def is_nvidias(path: str) -> bool:
        return any(is_proprietary(package.metadata) for package in tree.packages(path))

    sources = every or tree.gives_sources
    return cut.left_out(tree.sizes, read_code, tree.head, is_nvidias, drops, sources=sources, libraries=every)


class StripRule:
    """Packages from which GPU code is cut lose their symbol tables too; no other is changed for them alone, unless
    --strip asked for that."""

    def __init__(self, *, asked: bool | None) -> None:
        self._asked = bool(asked)
        self.cut_from: set[str] = set()  # packages

    def note(self, packages: Iterable[str], result: LibraryResult) -> None:
        if result.status is LibraryStatus.CUT:
            self.cut_from.update(packages)

    def goes_along(self, packages: Collection[str]) -> bool:
        """Whether a library without GPU code loses them, by what is known so far."""
        return self._asked or not self.cut_from.isdisjoint(packages)

    def wanted(self, packages: Collection[str], result: LibraryResult) -> bool:
        """Whether this result may be put in place, by what is known so far."""
        return result.status is not LibraryStatus.STRIPPED or self.goes_along(packages)


def stripped_with(results: Mapping[str, LibraryResult], *, asked: bool | None) -> dict[str, LibraryResult]:
    """The libraries of one package by that rule; one that is to keep its symbol tables says what --strip would save."""
    rule = StripRule(asked=asked)
    for result in results.values():
        rule.note(_ONE, result)
    return {name: one if rule.wanted(_ONE, one) else one.with_symbols() for name, one in results.items()}


def changed_rows(
    rows: Iterable[tuple[str, RecordRow]], now: Callable[[str], FileState | Gone | None]
) -> dict[str, RecordRow | None]:
    """The rows of a RECORD, each with the path it leads to, that no longer hold; `now` says what is there, None where
    that is what was."""
    changes: dict[str, RecordRow | None] = {}
    for path, row in rows:
        if (state := now(path)) is not None:
            changes[row.path] = None if isinstance(state, Gone) else state.row(row.path)
    return changes
