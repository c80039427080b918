"""What comes in the place of files that were left out because they were never opened.

Modules of Python go to packs, with what imports them from there. An extension module or a library leaves a stand-in,
which says so and names the command. For a module it raises what Python raises without it, so that programs that can go
without it still do; for a library it is one in its place, for which the dynamic linker says so.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from torchtailor.code.binary.placeholder import placeholder
from torchtailor.surgery.cut import UNOPENED
from torchtailor.tailoring.packs import folder_of
from torchtailor.tailoring.tree import FileState, FileTree, NewFile, Package
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.libraries import is_shared_name, module_name
from torchtailor.workload.moved_modules import MODULES, NAMES, PACK_OF_MODULES, list_of_names

HOOK = "modules.py"
# A line of a .pth file is run by `site`, which calls the folder that it is in `sitedir`.
START_LINE = (
    "import os; moved = os.path.join(sitedir, '{place}'); os.path.isfile(moved) and "
    "exec(open(moved, 'rb').read(), {{'__name__': '{name}', '__file__': moved}})\n"
)
_MODULES_LINE = (
    "import os; moved = os.path.join(sitedir, '{place}'); import sys; "
    "from _frozen_importlib_external import SourceFileLoader as Loader; own = 'torchtailor_modules_{digest}'; "
    "own in sys.modules or os.path.isfile(moved) and exec(Loader(own, moved).get_code(own), "
    "vars(sys.modules.setdefault(own, type(sys)(own)))); own in sys.modules and sys.modules[own].{call}\n"
)
_CUSTOM = "sitecustomize.py"
_START = '"""Left out by torchtailor'
_TEXT = '''"""Left out by torchtailor (--drop-unopened): {file}"""

raise ModuleNotFoundError(
    "{file} was left out, because the program that was recorded never opened it: {command} brings it back.",
    name=__name__,
)
'''

_SENTENCE = "{file} was left out, because the program that was recorded never opened it; {command} brings it back"


def stand_ins(tree: FileTree, dropped: Mapping[str, DroppedFile]) -> dict[str, tuple[NewFile, ...]]:
    """For each file that was never opened and is left out, by its path, what comes in its place: for a library a
    stand-in, which has the same path; for a module of Python its pack, shared with others.

    A library that no package lists leaves nothing: nobody would remove it, and it would hide another of its name.
    """
    made = _packed_modules(tree, [file.path for file in dropped.values() if file.rule == UNOPENED])
    present = [path for path in tree.sizes if path not in dropped]
    for file in dropped.values():
        path = PurePosixPath(file.path)
        if file.rule != UNOPENED or not is_shared_name(path.name):
            continue
        shared, package = tree.shared(file.path), next(iter(tree.packages(file.path)), None)
        if shared.is_module:
            name = path.with_name(module_name(path.name)).as_posix()
            place = f"{name}.py"
            if place in present or any(other.startswith(f"{name}/") for other in present):
                continue
            content = _TEXT.format(file=path.name, command=tree.brings_back(file.path)).encode()
        elif shared.machine and package:
            place = file.path
            sentence = _SENTENCE.format(file=path.name, command=tree.brings_back(file.path))
            content = placeholder(shared.machine, path.name, sentence)
        else:
            continue
        made[file.path] = (NewFile(place, content, FileState.of_bytes(content), package),)
    return made


def for_pythonpath(tree: FileTree, added: Iterable[NewFile]) -> Iterator[NewFile]:
    """What runs the `.pth` files of a folder that is on PYTHONPATH, as Python does by itself in site-packages only."""
    sites = {posixpath.dirname(file.path): file.package for file in added if file.path.endswith(".pth")}
    for site, package in sites.items():
        path = posixpath.join(site, _CUSTOM)
        if path not in tree.sizes:
            content = (Path(__file__).parent.parent / "workload" / "on_pythonpath.py").read_bytes()
            yield NewFile(path, content, FileState.of_bytes(content), package)


def distinct(files: Iterable[tuple[NewFile, ...]], known: Iterable[NewFile] = ()) -> list[NewFile]:
    """Each new file once, without what is known."""
    there = {one.path for one in known}
    return list({one.path: one for several in files for one in several if one.path not in there}.values())


def _packed_modules(tree: FileTree, paths: Iterable[str]) -> dict[str, tuple[NewFile, ...]]:
    """For each module of Python its pack, what imports it from there, and what makes Python do so."""
    by_package: dict[str, tuple[Package, list[str]]] = {}
    for path in sorted(paths):
        package = next(iter(tree.packages(path)), None)
        if path.endswith(".py") and package:
            by_package.setdefault(package.dist_info, (package, []))[1].append(path)
    made: dict[str, tuple[NewFile, ...]] = {}
    hook = finder()
    for package, own in by_package.values():
        folder = folder_of(package)
        modules = {posixpath.relpath(tree.installed(path), package.site): path for path in own}
        pack = _zipped((name, tree.source(path)) for name, path in modules.items())
        name = f"{folder}/{MODULES}{hashlib.sha256(pack).hexdigest()[:8]}{PACK_OF_MODULES}"
        tops = " ".join(sorted({name.partition("/")[0].removesuffix(".py") for name in modules}))
        files = {
            name: pack,
            f"{name.removesuffix(PACK_OF_MODULES)}{NAMES}": list_of_names(posixpath.basename(name), modules),
            f"{folder}/{HOOK}": hook,
            f"torchtailor-{posixpath.basename(folder)}.pth": modules_line(
                f"{folder}/{HOOK}", f"use_packs(moved, {tops!r})"
            ),
        }
        added = tuple(
            NewFile(posixpath.normpath(f"{package.site}/{path}"), data, FileState.of_bytes(data), package)
            for path, data in files.items()
        )
        made |= dict.fromkeys(own, added)
    return made


@cache
def finder() -> bytes:
    """What finds modules, which lies beside them."""
    return (Path(__file__).parent.parent / "workload" / "moved_modules.py").read_bytes()


def modules_line(place: str, call: str) -> bytes:
    """A line that calls a function of the finder, which is loaded once for all packages that have the same."""
    digest = hashlib.sha256(finder()).hexdigest()[:8]
    return _MODULES_LINE.format(place=place, call=call, digest=digest).encode()


def _zipped(modules: Iterable[tuple[str, bytes]]) -> bytes:
    """A zip of modules, the same for the same ones."""
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED, compresslevel=9) as pack:
        for name, content in modules:
            pack.writestr(ZipInfo(name), content, ZIP_DEFLATED, 9)
    return made.getvalue()


def is_stand_in(path: Path) -> bool:
    """Whether a file is one of these."""
    try:
        start = {".py": _START, ".pth": START_LINE.partition("{")[0]}.get(path.suffix)
        return start is not None and path.read_bytes()[: len(start)] == start.encode()
    except OSError:
        return False
