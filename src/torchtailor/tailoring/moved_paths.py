"""Files that a program never opened, and that are neither libraries nor modules, go beside the packs.

A link leads there from their place, one for a whole folder where all of it goes: programs that were not recorded find
them."""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from torchtailor.core.disk import give_to, sync_folder
from torchtailor.core.trust import RelativePath, Size, inside
from torchtailor.surgery.cut import UNOPENED, Cut, FilesLeftOut
from torchtailor.tailoring.packs import UNOPENED_FILES, folder_of
from torchtailor.tailoring.tree import InstalledTree, Package, folders_above, remove_empty
from torchtailor.trees.artifact.libraries import is_shared_name
from torchtailor.trees.wheels.record import RecordRow

_PYTHON = (".py", ".pyc", ".pth")


@dataclass(frozen=True, slots=True)
class MovedPath:
    """A file, or a folder with all that is in it, that a link leads to from its place."""

    path: RelativePath
    to: Annotated[RelativePath, Meta(description="where it lies")]
    files: int
    size: Size
    is_folder: bool = False

    @property
    def link(self) -> str:
        """What the link says."""
        return posixpath.relpath(self.to, posixpath.dirname(self.path))

    def is_linked(self, root: Path) -> bool:
        """Whether the link is in its place, and leads to something."""
        place = inside(root, self.path)
        return place.is_symlink() and str(place.readlink()) == self.link and place.exists()

    def is_halfway(self, root: Path) -> bool:
        """Whether it was moved, and the link is still to come."""
        return not os.path.lexists(inside(root, self.path)) and inside(root, self.to).exists()

    def move(self, root: Path) -> None:
        """Move it, and put the link in its place; what was interrupted in between is completed."""
        place, to = inside(root, self.path), inside(root, self.to)
        if self.is_linked(root):
            return
        if not self.is_halfway(root):
            _delete(to)  # of a package that something else removed
            made = [folder for folder in to.parents if root in folder.parents and not folder.exists()]
            to.parent.mkdir(parents=True, exist_ok=True)
            for folder in made:
                give_to(folder, place.parent.stat())
            place.rename(to)
            sync_folder(to.parent)
        place.symlink_to(self.link)
        sync_folder(place.parent)

    def move_back(self, root: Path) -> None:
        """Undo that."""
        place = inside(root, self.path)
        place.unlink()
        inside(root, self.to).rename(place)
        sync_folder(place.parent)
        remove_empty(root, [self.to])

    def row(self, files: Mapping[str, RecordRow], site: str = ".") -> RecordRow:
        """What RECORD has of it besides the files at their own paths, by which `files` has them: an installer that
        removes the package removes the link, too, and what it leads to."""
        if self.is_folder:
            return RecordRow(posixpath.relpath(self.path, site))
        return replace(files[self.path], path=posixpath.relpath(self.to, site))


def _delete(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def moved_from(tree: InstalledTree, left_out: FilesLeftOut, cut: Cut) -> tuple[FilesLeftOut, dict[MovedPath, Package]]:
    """Of the files that are left out, what moves instead, with whose it is; what moved before is neither."""
    if cut.no_pack:
        return left_out, {}
    paths = {path for path, file in left_out.files.items() if file.rule == UNOPENED and _is_data(path)}
    wanted: dict[str, Package] = {}
    elsewhere = _Elsewhere(tree.folder)
    stays = {path for path in paths if path in elsewhere}
    for path in paths - stays:
        packages = tree.packages(path)
        if len(packages) == 1:
            wanted[path] = packages[0]
    gone = stays | wanted.keys()
    files = {path: file for path, file in left_out.files.items() if path not in gone}
    return FilesLeftOut(files, left_out.refused), dict(_grouped(tree, wanted))


def _is_data(path: str) -> bool:
    return not path.endswith(_PYTHON) and not is_shared_name(posixpath.basename(path))


class _Elsewhere:
    """Whether a file is a link, in a folder that one leads to, or on another file system."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._device = root.stat().st_dev
        self._folders = {"": False}

    def __contains__(self, path: str) -> bool:
        return self._is_elsewhere(path) or self._folder(posixpath.dirname(path))

    def _folder(self, path: str) -> bool:
        if path not in self._folders:
            self._folders[path] = self._is_elsewhere(path) or self._folder(posixpath.dirname(path))
        return self._folders[path]

    def _is_elsewhere(self, path: str) -> bool:
        try:
            status = os.lstat(f"{self._root}/{path}")
        except OSError:
            return True
        return stat.S_ISLNK(status.st_mode) or status.st_dev != self._device


def _grouped(tree: InstalledTree, wanted: Mapping[str, Package]) -> Iterator[tuple[MovedPath, Package]]:
    """The files, or the largest folders of one package in which all is to move."""
    whole = _whole_folders(tree, wanted)
    members: dict[str, list[str]] = {}
    for path in sorted(wanted):
        members.setdefault(next((folder for folder in folders_above(path) if folder in whole), path), []).append(path)
    for path, files in members.items():
        package = wanted[files[0]]
        inner = posixpath.relpath(path, package.site)
        to = posixpath.normpath(f"{package.site}/{folder_of(package)}/{UNOPENED_FILES}/{inner}")
        yield MovedPath(path, to, len(files), sum(tree.sizes[file] for file in files), path in whole), package


def _whole_folders(tree: InstalledTree, wanted: Mapping[str, Package]) -> set[str]:
    """The folders of which nothing stays, is another package's, or is a link."""
    mixed: set[str] = set()
    owner: dict[str, Package] = {}
    for path in tree.sizes:
        package = wanted.get(path)
        for folder in folders_above(path):
            if package is None or owner.setdefault(folder, package) != package:
                mixed.add(folder)
    whole: set[str] = set()
    for folder in sorted(owner.keys() - mixed, key=len):  # the outer ones first
        if whole.isdisjoint(folders_above(folder)) and not _has_more(tree, folder):
            whole.add(folder)
    return whole


def _has_more(tree: InstalledTree, folder: str) -> bool:
    """Whether there is something else in a folder than the files of packages: links would lead elsewhere, and what a
    user put there is not the package's."""
    for place, folders, names in os.walk(tree.folder / folder):
        below = os.path.relpath(place, tree.folder)
        if any(f"{below}/{name}" not in tree.sizes for name in names):
            return True
        if any(os.path.islink(f"{place}/{name}") for name in (*folders, *names)):  # noqa: PTH114
            return True
    return False
