"""What a path given by the user holds: one library, a wheel, a folder, or a Python environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from torchtailor.artifact.wheel import Member, begins_with, list_members
from torchtailor.binary.elf_headers import MAGIC
from torchtailor.errors import BadInputError, EnvironmentProblem, NoMatchError

# never libraries, and many: not opening them makes a large environment quick
_TEXT_SUFFIXES = frozenset((
    ".c", ".cc", ".cfg", ".cmake", ".cpp", ".css", ".csv", ".cu", ".cuh", ".gif", ".h", ".hpp", ".html",
    ".hxx", ".in", ".inc", ".ini", ".inl", ".ipynb", ".jinja", ".jpg", ".js", ".json", ".lark", ".map",
    ".md", ".mjs", ".pem", ".png", ".proto", ".pth", ".pxd", ".pxi", ".py", ".pyc", ".pyi", ".pyx", ".rst",
    ".sh", ".svg", ".toml", ".ts", ".ttf", ".txt", ".typed", ".xml", ".yaml", ".yml",
))  # fmt: skip
_ZIP_MAGIC = b"PK"


class InputKind(Enum):
    """The forms in which libraries are given to us."""

    LIBRARY = "library"
    WHEEL = "wheel"
    FOLDER = "folder"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Item:
    """One library to read: a file, or a member of a wheel."""

    name: str  # as shown: relative to the input
    size: int
    where: Path | Member


@dataclass(frozen=True, slots=True)
class Input:
    """A path the user gave, and the libraries found there."""

    path: Path
    kind: InputKind
    items: tuple[Item, ...]


def open_input(path: Path) -> Input:
    """Find out what a path is, and list the ELF files it holds."""
    if path.is_dir():
        roots = site_packages(path)
        if roots:
            return Input(path, InputKind.ENVIRONMENT, tuple(_folder_items(path, roots)))
        return Input(path, InputKind.FOLDER, tuple(_folder_items(path, (path,))))
    if not path.exists():
        raise NoMatchError(f"{path} does not exist.", "Give a library, a wheel, a folder or an environment.")
    if not path.is_file():
        raise BadInputError(f"{path} is neither a file nor a folder.")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}.") from error
    if path.suffix == ".whl" or magic.startswith(_ZIP_MAGIC):
        return Input(path, InputKind.WHEEL, tuple(_wheel_items(path)))
    # anything else is taken for a library, and if it is none its own error says so
    return Input(path, InputKind.LIBRARY, (Item(str(path), path.stat().st_size, path),))


def site_packages(path: Path) -> tuple[Path, ...]:
    """The package folders of an environment (venv, virtualenv, conda); empty where the folder is none."""
    if path.name == "site-packages":
        return (path,)
    if not ((path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()):
        return ()
    found = sorted(path.glob("lib/python3*/site-packages"))
    return tuple(folder for folder in found if folder.is_dir())


def _folder_items(shown_from: Path, roots: tuple[Path, ...]) -> Iterator[Item]:
    seen: set[tuple[int, int]] = set()  # hard links and symbolic links lead to the same library more than once
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                if os.path.splitext(name)[1] in _TEXT_SUFFIXES:  # noqa: PTH122 (a Path each is slow)
                    continue
                path = Path(folder, name)
                stat = _stat_if_elf(path)
                if stat is None or (stat.st_dev, stat.st_ino) in seen:
                    continue
                seen.add((stat.st_dev, stat.st_ino))
                yield Item(str(path.relative_to(shown_from)), stat.st_size, path)


def _stat_if_elf(path: Path) -> os.stat_result | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return os.fstat(file.fileno()) if file.read(len(MAGIC)) == MAGIC else None
    except OSError:  # a broken link, or not ours to read: nothing that Python could import either
        return None


def _wheel_items(wheel: Path) -> Iterator[Item]:
    for member in list_members(wheel):
        if PurePosixPath(member.name).suffix not in _TEXT_SUFFIXES and begins_with(member, MAGIC):
            yield Item(member.name, member.size, member)
