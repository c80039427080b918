"""Stand-ins for NVIDIA's libraries in packages whose GPU code was removed: these load without them.

What they define is what the packages' own libraries ask for: the functions that are bound to a version of a missing
library, and those without a version that have its name. Nothing of NVIDIA's is read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from torchtailor.catalog.makers import maker_of
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import DynamicTag, ElfMachine
from torchtailor.code.binary.stand_in import StandInSymbol, write_stand_in
from torchtailor.code.binary.symbols import (
    NeededSymbol,
    dynamic_symbols,
    dynamic_text,
    needed_libraries,
    needed_symbols,
)
from torchtailor.tailoring.tree import FileState, NewFile, Package

_SENTENCE = "torchtailor: {package} was cut for machines without a GPU (--gpu none): {library} is not there."
# The CUDA runtime stays, and the driver is no package: without one, torch knows what to do.
_NOT_REPLACED = ("libcudart.", "libcuda.", "libnvidia-")
_NAME = re.compile(r"lib(?P<stem>[A-Za-z0-9]+)")
_OTHER_STEMS = {"nvtoolsext": "nvtx"}
_NPP = "npp"  # one library for each kind of function, all with the same prefix


@dataclass(frozen=True, slots=True)
class GpuStandIn:
    """A library that stands in for one of NVIDIA's."""

    path: str  # in the tree
    content: bytes = field(repr=False)
    symbols: int
    package: Package  # whose libraries look for it there
    machine: ElfMachine

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def sha256(self) -> str:
        return self.file.state.sha256

    @property
    def file(self) -> NewFile:
        return NewFile(self.path, self.content, FileState.of_bytes(self.content), self.package)


@dataclass(frozen=True, slots=True)
class AskingLibrary:
    """A library of a package: what it needs, and where the dynamic linker looks for that."""

    path: str
    machine: ElfMachine
    soname: str
    needed: tuple[str, ...]
    run_path: str
    symbols: tuple[NeededSymbol, ...]  # that may be NVIDIA's
    defined: frozenset[str]  # of those without a version that others ask for

    @classmethod
    def read(cls, path: str, elf: ElfFile) -> AskingLibrary:
        return cls(
            path,
            elf.machine,
            dynamic_text(elf, DynamicTag.SONAME) or PurePosixPath(path).name,
            needed_libraries(elf),
            dynamic_text(elf, DynamicTag.RUNPATH) or dynamic_text(elf, DynamicTag.RPATH),
            tuple(symbol for symbol in needed_symbols(elf) if _is_missing(symbol.library) or not symbol.version),
            frozenset(symbol.name for symbol in dynamic_symbols(elf) if not symbol.undefined),
        )

    def folder_in(self, folders: Collection[str]) -> str | None:
        """The first of these folders in which the dynamic linker looks for what it needs."""
        own = posixpath.dirname(self.path)
        for entry in self.run_path.split(":"):
            start, _, rest = entry.partition("/")
            place = posixpath.normpath(posixpath.join(own, rest))
            if start in ("$ORIGIN", "${ORIGIN}") and place in folders:
                return place
        return None


@dataclass(frozen=True, slots=True)
class AskingPackage:
    """A package, its libraries and its files, each with its path in the tree; and what it may find in others."""

    package: Package
    libraries: Sequence[AskingLibrary]
    files: Collection[str]
    required: Mapping[str, tuple[str, Package]] = field(default_factory=dict)  # files that leave, by name


def gpu_stand_ins(packages: Sequence[AskingPackage]) -> tuple[GpuStandIn, ...]:
    """The stand-ins that the libraries of these packages need, each in a place of the package that looks for it there.

    All of one name have what any of the packages asks for: the first that is loaded serves all. Where a package does
    not look inside itself, its stand-in takes the place of the library, if that is one of a package that it requires;
    else another brings the library, as torch does for its companions.
    """
    asking = [library for package in packages for library in package.libraries]
    present = {PurePosixPath(path).name for package in packages for path in package.files} | {
        one.soname for one in asking
    }
    wanted: dict[str, set[StandInSymbol]] = {}
    places: dict[str, tuple[str, Package, ElfMachine]] = {}  # by path: the library's name, and whose it will be
    for one in packages:
        folders = {posixpath.dirname(path) for path in one.files}
        found: dict[str, tuple[str, Package, ElfMachine]] = {}  # by name: the place, and whose it will be
        elsewhere: dict[str, tuple[str, Package, ElfMachine]] = {}
        for library in one.libraries:
            for name in library.needed:
                if name in found or name in present or not _is_missing(name):
                    continue
                folder = library.folder_in(folders)
                if folder is not None:
                    found[name] = posixpath.join(folder, name), one.package, library.machine
                elif name in one.required:
                    elsewhere[name] = *one.required[name], library.machine
        for name, (path, package, machine) in (elsewhere | found).items():
            wanted[name] = set()
            places[path] = name, package, machine
    defined = frozenset[str]().union(*(library.defined for library in asking))
    stems = {name: _stem(name) for name in wanted}
    for symbol in (symbol for library in asking for symbol in library.symbols):
        if symbol.version:
            owner: str | None = symbol.library
        else:
            owner = None if symbol.name in defined else _owner(symbol.name, stems)
        if owner in wanted:
            wanted[owner].add(StandInSymbol(symbol.name, symbol.version, symbol.is_data))
    made = []
    for path, (name, package, machine) in sorted(places.items()):
        sentence = _SENTENCE.format(package=package.metadata.name, library=name)
        content = write_stand_in(machine, name, wanted[name], sentence)
        made.append(GpuStandIn(path, content, len(wanted[name]), package, machine))
    return tuple(made)


def _is_missing(library: str) -> bool:
    """Whether it is one of NVIDIA's libraries that leave."""
    return maker_of(library) is not None and not library.startswith(_NOT_REPLACED)


def _stem(library: str) -> str:
    """How the functions of a library begin: `cusparselt` for libcusparseLt.so.0."""
    match = _NAME.match(library)
    stem = match["stem"].lower() if match else library
    return _NPP if stem.startswith(_NPP) else _OTHER_STEMS.get(stem, stem)


def _owner(symbol: str, stems: dict[str, str]) -> str | None:
    """The library whose name a function has: the longest that fits, cusparseLt before cusparse."""
    name = symbol.lstrip("_").lower()
    fitting = [library for library, stem in stems.items() if name.startswith(stem)]
    return max(fitting, key=lambda library: len(stems[library]), default=None)
