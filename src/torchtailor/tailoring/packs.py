"""Where packs and the hook go beside the libraries that need them.

What belongs to a distribution lies in a folder of its own, `torchtailor-packs/torch`, so that uninstalling one takes
nothing from another. Each has its copy of the hook; the first that is loaded serves all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.source import open_source
from torchtailor.core.disk import copy_file
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.hooked import patchelf
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library
from torchtailor.workload.pack import PACK_FOLDER, PackPlace


def folder_name(distribution: str) -> str:
    """The name of a distribution as its folder has it."""
    return canonicalize_name(distribution).replace("-", "_")


def pack_folder(distribution: str = "") -> str:
    """The folder for packs and hook of a distribution, below site-packages; or of a folder without packages."""
    return f"{PACK_FOLDER}/{distribution}" if distribution else PACK_FOLDER


def pack_place(root: Path, library: str, options: Cut, folder: str = PACK_FOLDER) -> PackPlace | None:
    """The place for the pack of a library, both at paths below `root`; None where no code goes to packs."""
    if not options.packing:
        return None
    above = PurePosixPath(library).parent.as_posix()
    place = None if options.no_pack else options.packs or root / folder
    return PackPlace(place, os.path.relpath(folder, above))


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
    """The same for a wheel, by its platform tag."""
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


def put_hook(folder: Path, library: Path) -> Path:
    """Copy the hook for a library to where that looks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / HOOK_NAME
    copy_file(hook_for(library), target)
    target.chmod(0o644)
    return target


def hook_for(library: Path) -> Path:
    """The hook that runs beside a library."""
    with open_source(library) as source:
        return hook_library(ElfFile(source).machine, HookKind.NEEDED)
