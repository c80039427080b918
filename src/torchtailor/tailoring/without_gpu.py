"""What becomes of the packages of a tree on machines without a GPU (`--gpu none`), besides their GPU code.

Packages that only a GPU needs leave, and so do copies of NVIDIA's libraries in others. What requires them no longer
does, and stand-ins come for what was linked with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from torchtailor.code.binary.elf import ElfFile
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.cut import GPU_ONLY, Cut
from torchtailor.tailoring.gpu_stand_ins import AskingLibrary, AskingPackage, GpuStandIn, gpu_stand_ins
from torchtailor.tailoring.tree import FileState, FileTree, InstalledTree, LocalTree, NewFile, Package
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.libraries import may_be_elf
from torchtailor.trees.licences import is_proprietary
from torchtailor.trees.wheels.metadata import with_requirements
from torchtailor.trees.wheels.no_gpu import is_gpu_library, is_gpu_package, required_name, stated_without_gpu

ReadAsking = Callable[[str], AskingLibrary | None]
_COMPILED = re.compile(r"(?P<above>(?:.*/)?)__pycache__/(?P<name>[^/]+?)\.[^/]*\.pyc")


@dataclass(frozen=True)
class WithoutGpu:
    """What leaves, what changes and what comes; paths are those of the tree."""

    leaving: tuple[tuple[Package, tuple[str, ...]], ...] = ()  # with their files
    gone: Mapping[str, DroppedFile] = field(default_factory=dict)
    requirements: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)  # that change, by dist-info
    staying: tuple[tuple[Package, tuple[str, ...]], ...] = ()  # with their files that stay
    stand_ins: tuple[GpuStandIn, ...] = ()  # for libraries that are not there
    notes: tuple[str, ...] = ()  # of packages that look for a library where none of these can lie

    @classmethod
    def of(cls, tree: FileTree, options: Cut) -> WithoutGpu:
        """What a cut does to the packages of a tree."""
        if not options.targets.none:
            return cls()
        packages: dict[str, Package] = {}
        files: dict[str, list[str]] = {}
        for path in tree.sizes:
            for package in tree.packages(path):
                packages[package.dist_info] = package
                files.setdefault(package.dist_info, []).append(path)
        leaving = frozenset(_leaving(packages.values()))
        stay = [packages[dist_info] for dist_info in sorted(packages) if dist_info not in leaving]
        gone = set(_files_of(leaving, tree)) | {
            path
            for package in stay
            if not is_proprietary(package.metadata)
            for path in files[package.dist_info]
            if is_gpu_library(path)
        }
        return cls(
            tuple((packages[dist_info], tuple(files[dist_info])) for dist_info in sorted(leaving)),
            {path: DroppedFile(path, GPU_ONLY, tree.sizes[path]) for path in sorted(gone)},
            {package.dist_info: changed for package in stay if (changed := _changed(package))},
            tuple((one, tuple(path for path in files[one.dist_info] if path not in gone)) for one in stay),
        )

    def with_stand_ins(self, read: ReadAsking) -> WithoutGpu:
        """The same with what comes for libraries that are not there; `read` gives the library at a path.

        Where a package finds another's libraries by that one's metadata, these have stand-ins in their places, and of
        the other package metadata and modules stay.
        """
        asking = [
            AskingPackage(package, _libraries(own, read), own, self._required(package)) for package, own in self.staying
        ]
        made = gpu_stand_ins(asking)
        there = {PurePosixPath(path).name for one in asking for path in one.files} | {one.name for one in made}
        missing = {PurePosixPath(path).name for path in self.gone} - there
        lacking = {
            one.package.metadata.name: missing.intersection(name for each in one.libraries for name in each.needed)
            for one in asking
        }
        notes = tuple(
            f"{name} may not load: it needs {', '.join(sorted(names))}, and its libraries do not look for that where a"
            " stand-in could lie."
            for name, names in lacking.items()
            if names
        )
        return replace(self._keeping({one.package.dist_info for one in made}), stand_ins=made, notes=notes)

    def _required(self, package: Package) -> dict[str, tuple[str, Package]]:
        """By name, the files that leave with packages which this one requires."""
        names = set(map(required_name, package.metadata.requires))
        return {
            PurePosixPath(path).name: (path, other)
            for other, own in self.leaving
            if other.site == package.site and other.metadata.name in names
            for path in own
        }

    def _keeping(self, dist_infos: Collection[str]) -> WithoutGpu:
        """The same, where metadata and modules of some packages stay, and what requires these goes on to."""
        kept = [(package, own) for package, own in self.leaving if package.dist_info in dist_infos]
        if not kept:
            return self
        modules = {path for _, own in kept for path in own if path.endswith(".py")}
        folders = tuple(f"{package.dist_info}/" for package, _ in kept)
        gone = {
            path: file for path, file in self.gone.items() if not (path.startswith(folders) or _source(path) in modules)
        }
        staying = (
            *self.staying,
            *((package, tuple(path for path in own if path not in gone)) for package, own in kept),
        )
        named = {(package.site, package.metadata.name) for package, _ in kept}
        requirements = {}
        for package, _ in staying:
            changed = _changed(package)
            if left := {text: new for text, new in changed.items() if (package.site, required_name(text)) not in named}:
                requirements[package.dist_info] = left
        leaving = tuple(one for one in self.leaving if one not in kept)
        return replace(self, leaving=leaving, gone=gone, requirements=requirements, staying=staying)

    @property
    def packages(self) -> tuple[Package, ...]:
        """Those that leave."""
        return tuple(package for package, _ in self.leaving)

    @property
    def names(self) -> tuple[str, ...]:
        """The packages that leave."""
        return tuple(package.metadata.name for package in self.packages)

    @property
    def changed_requirements(self) -> dict[str, str | None]:
        """What is left of each requirement that changes, of all packages."""
        return {text: left for each in self.requirements.values() for text, left in each.items()}

    def metadata(self, dist_info: str, stock: bytes) -> bytes:
        """METADATA of a package that stays."""
        changed = self.requirements.get(dist_info, {})
        return with_requirements(stock, lambda stated: changed.get(stated, stated))

    def new_metadata(self, tree: InstalledTree) -> Iterator[NewFile]:
        """The METADATA of packages of a folder that change."""
        for package in (package for package, _ in self.staying if package.dist_info in self.requirements):
            path = f"{package.dist_info}/METADATA"
            data = self.metadata(package.dist_info, (tree.folder / path).read_bytes())
            yield NewFile(path, data, FileState.of_bytes(data), package)


def asking_in(tree: LocalTree) -> ReadAsking:
    """Reads the libraries of a tree whose files can be opened."""

    def read(path: str) -> AskingLibrary | None:
        if not may_be_elf(path) or not (file := tree.file(path)).is_elf:
            return None
        with suppress(BadInputError), file.open() as source:  # what is no library of this kind asks for nothing
            return AskingLibrary.read(path, ElfFile(source))
        return None

    return read


def _source(path: str) -> str:
    """The module that Python compiled a file of; other files are their own source."""
    compiled = _COMPILED.fullmatch(path)
    return f"{compiled['above']}{compiled['name']}.py" if compiled else path


def _libraries(paths: Iterable[str], read: ReadAsking) -> tuple[AskingLibrary, ...]:
    return tuple(library for path in paths if (library := read(path)))


def _changed(package: Package) -> dict[str, str | None]:
    left = {text: stated_without_gpu(package.metadata.name, text) for text in package.metadata.requires}
    return {text: new for text, new in left.items() if new != text}


def _leaving(packages: Iterable[Package]) -> Iterator[str]:
    """The dist-info folders of packages that only a GPU needs, and that no package which stays requires."""
    by_site: dict[str, list[Package]] = {}
    for package in packages:
        by_site.setdefault(package.site, []).append(package)
    for here in by_site.values():
        names = {package.metadata.name for package in here if is_gpu_package(package.metadata.name)}
        while needed := names & {
            name for package in here if package.metadata.name not in names for name in _required(package)
        }:
            names -= needed
        yield from (package.dist_info for package in here if package.metadata.name in names)


def _required(package: Package) -> Iterator[str]:
    """What a package requires without a GPU, also where a marker decides; extras are what somebody else asks for."""
    for stated in package.metadata.requires:
        if (left := stated_without_gpu(package.metadata.name, stated)) and "extra" not in left.partition(";")[2]:
            yield required_name(left)


def _files_of(leaving: Iterable[str], tree: FileTree) -> Iterator[str]:
    """The files that only packages have which leave, and what Python compiled of them."""
    gone = frozenset(leaving)
    own = {path for path in tree.sizes if (each := tree.packages(path)) and all(one.dist_info in gone for one in each)}
    for path in tree.sizes:
        if path in own or _source(path) in own or path.rpartition("/")[0] in gone:
            yield path
