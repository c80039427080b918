"""What holds for the files of every input: whose they are, which go, which lose symbol tables, what RECORD says.

A wheel, a folder, an environment and the layers of an image are each a `FileTree`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from torchtailor.code.gpucode.files import CodeFile
from torchtailor.core.disk import hash_file
from torchtailor.core.trust import Sha256, Size
from torchtailor.surgery.cut import Cut, FilesLeftOut
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.trees.artifact.drops import Drops
from torchtailor.trees.artifact.installed import InstalledDistribution
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.trees.licences import is_proprietary, needs_nvidia_option
from torchtailor.trees.wheels.metadata import Metadata
from torchtailor.trees.wheels.record import FileHash, RecordRow

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

    def row(self, path: str) -> RecordRow:
        return RecordRow(path, FileHash.from_hex(self.sha256), self.size)


class Gone(Enum):
    """What a file is that was left out."""

    GONE = "gone"


class FileTree(Protocol):
    """The files of an input, by path."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    def packages(self, path: str) -> Sequence[Metadata]:
        """The packages whose RECORD lists a file."""
        ...

    def code(self, path: str) -> CodeFile | None:
        """What a file of GPU code is; None for other files."""
        ...


@dataclass(frozen=True)
class InstalledTree:
    """A folder, or the site-packages of an environment."""

    folder: Path
    sizes: Mapping[str, int]
    owners: Mapping[str, tuple[InstalledDistribution, ...]]

    def packages(self, path: str) -> Sequence[Metadata]:
        return [owner.metadata for owner in self.owners.get(path, ())]

    def code(self, path: str) -> CodeFile | None:
        file = self.folder / path
        return LibraryFile(path, "", file.stat().st_size, file).code() if file.is_file() else None


def is_refused(tree: FileTree, path: str) -> bool:
    """Whether only --nvidia may cut a file; of one that no package lists its name decides."""
    packages: list[Metadata | None] = [*tree.packages(path)] or [None]
    return any(needs_nvidia_option(path, package) for package in packages)


def left_out_of(tree: FileTree, cut: Cut, drops: Drops | None = None) -> FilesLeftOut:
    """The files that an output goes without; of NVIDIA's packages only with --nvidia."""

    def read_code(path: str) -> CodeFile | None:
        return None if not cut.nvidia and is_refused(tree, path) else tree.code(path)

    def is_nvidias(path: str) -> bool:
        return any(map(is_proprietary, tree.packages(path)))

    return cut.left_out(tree.sizes, read_code, is_nvidias, drops)


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
