"""Indexes of the modules that a recorded program imported: one file a package, in place of two a module.

The files of the modules stay. A finder, which a .pth file installs, takes the code from the index as long as nothing in
the folder of a module came, left or was replaced; else it is imported as ever (`workload/moved_modules.py`).
"""

from __future__ import annotations

import marshal
import posixpath
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from torchtailor.core.documents import Bytes
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError
from torchtailor.core.pythons import find_python, version_of
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.left_out import HOOK, finder, modules_line
from torchtailor.tailoring.packs import folder_name, pack_folder
from torchtailor.tailoring.tree import FileState, FileTree, NewFile, Package, folders_above
from torchtailor.workload import compile_modules
from torchtailor.workload.moved_modules import INDEX, STANDARD, read_table

_TAG = re.compile(r"cpython-(\d)(\d+t?)")
_FEWEST = 3  # modules: what finds an index costs about as much
_INIT = "/__init__.py"


@dataclass(frozen=True, slots=True)
class ModuleIndex:
    """The index of one package for one Python."""

    path: str
    package: str
    python: Annotated[str, Meta(description="3.13: no other uses it")]
    modules: int
    size: Bytes


@dataclass(frozen=True, slots=True)
class MadeIndex:
    """An index, and the files that it consists of: itself first."""

    index: ModuleIndex
    files: tuple[NewFile, ...]


def module_indexes(
    tree: FileTree,
    cut: Cut,
    gone: Iterable[str] = (),
    python: Path | None = None,
    renamed: Callable[[str], str] = str,
) -> tuple[MadeIndex, ...]:
    """The indexes of a tree, without the files that it loses; `python` is the one that runs in it, if there is one: its
    own modules are indexed, too. `renamed` says what the path of a RECORD will be."""
    if not (cut.index_modules and cut.workload):
        return ()
    lost = set(gone)
    present = {path for path in tree.sizes if path not in lost}
    by_package: dict[str, tuple[Package, list[str]]] = {}
    for path in cut.workload.imported(present):
        if package := next(iter(tree.packages(path)), None):
            by_package.setdefault(package.dist_info, (package, []))[1].append(path)
    made = []
    for tag in _tags(cut) if by_package else ():
        every = [(package, _rows(tree, package, paths, present, tag)) for package, paths in by_package.values()]
        ordered = sorted(every, key=lambda one: -len(one[1]))
        own = _Standard.of(cut.workload.standard, python) if python and _is(python, tag) else None
        for package, rows in (one for one in ordered if len(one[1]) >= _FEWEST):
            record = posixpath.relpath(renamed(f"{package.dist_info}/RECORD"), package.site)
            made.append(_made(tree, package, rows, tag, own, record))
            own = None  # the largest brings it
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Standard:
    """The index of Python's own modules."""

    data: bytes
    tops: str

    @classmethod
    def of(cls, files: Sequence[str], python: Path) -> _Standard | None:
        tops = {file.removeprefix("lib-dynload/").partition("/")[0].partition(".")[0] for file in files}
        return cls(_compiled(list(files), None, python), " ".join(sorted(tops))) if files else None


def _tags(cut: Cut) -> list[str]:
    assert cut.workload is not None
    tags = [tag for tag in cut.workload.pythons if _TAG.fullmatch(tag)]
    if not tags:
        raise ImpossibleError(
            "The trace does not say which Python imported modules, and --index-modules needs that.",
            "Record the program with `torchtailor record`, or leave --index-modules out.",
        )
    return tags


def _rows(
    tree: FileTree, package: Package, paths: Iterable[str], present: set[str], tag: str
) -> list[tuple[str, str, str]]:
    """What a package has for the index of a Python: (path without ending, ending, path in the tree). What Python would
    not take for that module is left out, and what is below a folder that is no package."""
    names = {posixpath.relpath(tree.installed(path), package.site) for path in present}
    libraries = {name[: -len(_ending(name))] for name in names if name.endswith(".so")}
    rows = []
    for path in paths:
        name = posixpath.relpath(tree.installed(path), package.site)
        ending = _ending(name)
        inside = name[: -len(ending)]
        whole = all(f"{parent}{_INIT}" in names for parent in folders_above(inside))
        hidden = ending != _INIT and (f"{inside}{_INIT}" in names or (ending == ".py" and inside in libraries))
        if whole and not hidden and (ending.endswith(".py") or ending.startswith(f".{tag}-")) and tree.is_plain(path):
            rows.append((inside, ending, path))
    return rows


def _ending(name: str) -> str:
    """What follows the name of the module of a file."""
    if name.endswith(_INIT):
        return _INIT
    _, dot, ending = posixpath.basename(name).partition(".")
    return dot + ending


def _made(
    tree: FileTree,
    package: Package,
    rows: Sequence[tuple[str, str, str]],
    tag: str,
    own: _Standard | None,
    record: str,
) -> MadeIndex:
    version = _TAG.sub(r"\1.\2", tag)
    python = find_python(version)
    if python is None:
        raise EnvironmentProblem(
            f"The program that was recorded ran on Python {version}, and there is none here to compile its modules.",
            f"Install Python {version} (`uv python install {version}`), or leave --index-modules out.",
        )
    modules = [
        (inside, inside + ending, tree.source(path) if ending.endswith(".py") else None)
        for inside, ending, path in rows
    ]
    folders = {posixpath.dirname(file) for _, file, _ in modules} - {""}
    times = {folder: tree.changed_at(posixpath.normpath(f"{package.site}/{folder}")) for folder in folders}
    data = _compiled(modules, {folder: time for folder, time in sorted(times.items()) if time is not None}, python)
    name = folder_name(package.metadata.name)
    folder, hook = f"{package.site}/{pack_folder(name)}", f"{pack_folder(name)}/{HOOK}"
    tops = " ".join(sorted({inside.partition("/")[0] for inside, *_ in rows}))
    start = modules_line(hook, f"use_index(moved, {tops!r}, {record!r}, {own.tops if own else ''!r})")
    files = {
        f"{folder}/{INDEX.format(tag)}": data,
        **({f"{folder}/{STANDARD.format(tag)}": own.data} if own else {}),
        f"{folder}/{HOOK}": finder(),
        f"{package.site}/torchtailor-{name}-index.pth": start,
    }
    new = tuple(
        NewFile(posixpath.normpath(path), content, FileState.of_bytes(content), package)
        for path, content in files.items()
    )
    size = len(data) + (len(own.data) if own else 0)
    return MadeIndex(ModuleIndex(new[0].path, package.metadata.name, version, len(read_table(data)[2]), size), new)


def _is(python: Path, tag: str) -> bool:
    return version_of(python) == _TAG.sub(r"\1.\2", tag)


def _compiled(modules: Sequence[object], times: dict[str, int] | None, python: Path) -> bytes:
    """The index that a Python makes of modules, or, without times of folders, of files of its own library."""
    line = [str(python), "-I", "-X", "utf8", compile_modules.__file__]
    done = subprocess.run(line, input=marshal.dumps((list(modules), times), 2), capture_output=True, check=False)
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise EnvironmentProblem(
            f"{python} could not compile the modules: {said[-1] if said else 'it said nothing'}.",
            "Leave --index-modules out.",
        )
    return done.stdout
