"""Where packs and the hook go beside the libraries that need them.

What belongs to a distribution lies in a folder of its own, `torchtailor-packs/torch`, so that uninstalling one takes
nothing from another. Each has its copy of the hook; the first that is loaded serves all.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from packaging.utils import canonicalize_name

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.source import open_source
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.hooked import patchelf
from torchtailor.tailoring.tree import FileTree, Package
from torchtailor.workload.hook import HookKind, hook_library
from torchtailor.workload.moved_modules import PACK_OF_MODULES
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX, PackPlace

UNOPENED_FILES = "files"  # below the folder of a package


def folder_name(distribution: str) -> str:
    """The name of a distribution as its folder has it."""
    return canonicalize_name(distribution).replace("-", "_")


def pack_folder(distribution: str = "") -> str:
    """The folder for packs and hook of a distribution, below site-packages; or of a folder without packages."""
    return f"{PACK_FOLDER}/{distribution}" if distribution else PACK_FOLDER


def folder_of(package: Package) -> str:
    """The folder for packs and hook of a package, below its site-packages."""
    return pack_folder(folder_name(package.metadata.name))


def packs_beside(tree: FileTree, path: str) -> str:
    """The folder for the packs of a library and for the hook: in the site-packages of its package, if it has one."""
    package = next(iter(tree.packages(path)), None)
    if package is None:
        return tree.loose_packs(path)
    return posixpath.normpath(f"{package.site}/{folder_of(package)}")


def folders_of_packs(path: str) -> list[str]:
    """The folders that are made for a pack or a hook at this path, the outer one first."""
    parts = posixpath.dirname(path).split("/")
    first = parts.index(PACK_FOLDER) + 1
    return ["/".join(parts[:end]) for end in range(first, len(parts) + 1)]


def pack_place(tree: FileTree, path: str, options: Cut, packs: Path) -> PackPlace | None:
    """Where the pack of a library is written, `packs` unless the user named a folder; None where no code goes to
    packs."""
    if not options.packing:
        return None
    above = posixpath.dirname(tree.installed(path)) or "."
    folder = None if options.no_pack else options.packs or packs
    return PackPlace(folder, posixpath.relpath(packs_beside(tree, path), above))


def check_tools(options: Cut, libraries: Iterable[Path]) -> None:
    """Refuse, before anything is written, where what moves code out of these libraries is not installed."""
    if not options.packing or options.dry_run:
        return
    patchelf()
    for library in libraries:
        with suppress(BadInputError, OSError):  # what is no library is said later
            hook_for(library)
            return


def check_tools_for(options: Cut, platform: str) -> None:
    """The same for a wheel or an image, by its platform."""
    if not options.packing or options.dry_run:
        return
    patchelf()
    for machine in ElfMachine:
        if platform.endswith(machine.arch):
            hook_library(machine, HookKind.NEEDED)


def libraries_below(folder: Path) -> Iterator[Path]:
    """Files in a folder that are shared libraries by name."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names) if ".so" in name)


def size_of_packs(folder: Path, options: Cut) -> int:
    """Bytes that lie apart in a folder: packs of libraries and modules, and files that were never opened. A cut that
    makes none does not go through the folder."""
    size = 0
    for place, _, names in os.walk(folder) if options.packing else ():
        parts = Path(place).relative_to(folder).parts
        if PACK_FOLDER in parts:
            files = parts[parts.index(PACK_FOLDER) + 1 :][1:2] == (UNOPENED_FILES,)
            apart = (name for name in names if files or name.endswith((PACK_SUFFIX, PACK_OF_MODULES)))
            size += sum(Path(place, name).lstat().st_size for name in apart)
    return size


def hook_for(library: Path) -> Path:
    """The hook that runs beside a library."""
    with open_source(library) as source:
        return hook_library(ElfFile(source).machine, HookKind.NEEDED)
