"""What a path is: a library, a wheel, a wheelhouse, a folder, an environment, a Nix result, an unpacked image."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from torchtailor.code.binary.elf_headers import MAGIC
from torchtailor.code.gpucode.files import CodeFileKind, is_code_file, kind_by_name
from torchtailor.core.disk import hash_file
from torchtailor.core.errors import BadInputError, EnvironmentProblem, ImpossibleError, NoMatchError, UsageError
from torchtailor.core.format import human_bytes
from torchtailor.core.trust import Limit, read_limited
from torchtailor.trees.artifact.installed import InstalledDistribution, find_installed, installed_in
from torchtailor.trees.artifact.libraries import (
    LibraryFile,
    is_placeholder,
    loose_code_files,
    loose_libraries,
    packed_code_files,
    packed_libraries,
)
from torchtailor.trees.artifact.manifests import read_tailored, read_wheelhouse_manifest
from torchtailor.trees.artifact.sites import (
    find_sites,
    installed_path,
    is_environment,
    sees_system_packages,
    sites_below,
)
from torchtailor.trees.wheels.archive import Member, WheelArchive, open_member
from torchtailor.trees.wheels.distribution import MANIFEST, read_metadata
from torchtailor.trees.wheels.metadata import Metadata
from torchtailor.trees.wheels.name import WheelName, wheels_in
from torchtailor.trees.wheels.record import FileHash, Record

WHEELHOUSE_MANIFEST = "manifest.json"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_CONDA = (".conda", ".tar.bz2")
_IMAGES = ("docker:", "oci:", "oci-archive:", "docker-archive:")
_SYSTEMS = {"win": "Windows", "macosx": "macOS", "ios": "iOS"}
_WHAT_TO_GIVE = "Give a shared library, a wheel, a folder of libraries or wheels, or an environment."


class ArtifactKind(Enum):
    """The forms in which libraries are given to us."""

    LIBRARY = "library"
    WHEEL = "wheel"
    WHEELHOUSE = "wheelhouse"
    FOLDER = "folder"
    ENVIRONMENT = "environment"
    NIX = "Nix result"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A library as a file that can be mapped."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Artifact:
    """What a path is, its libraries, its packages, and what torchtailor wrote into it; each is read when asked for."""

    path: Path
    kind: ArtifactKind
    wheels: tuple[Path, ...] = ()
    label: str = ""  # what the user calls it, where that is no path
    made_for: tuple[str, ...] = ()  # GPUs that an image says it was cut for

    @property
    def shown(self) -> str:
        """As the user knows it."""
        return self.label or str(self.path)

    @cached_property
    def libraries(self) -> tuple[LibraryFile, ...]:
        """The ELF files in it; that a folder holds none is an error, that a wheel holds none is not."""
        found = tuple(self._files(code=False, packed=packed_libraries, loose=loose_libraries))
        if not found and not self.wheels and not self.code_files and self.kind is not ArtifactKind.IMAGE:
            raise nothing_in(self.path)
        return found

    @cached_property
    def code_files(self) -> tuple[LibraryFile, ...]:
        """The files that are GPU code by their name: cubins, PTX, bitcode, static libraries."""
        return tuple(self._files(code=True, packed=packed_code_files, loose=loose_code_files))

    @property
    def never_cut(self) -> str:
        """What it is, if that is never cut by what it is called: `a wheel for Windows`, `a static library`."""
        if self.kind is ArtifactKind.LIBRARY:
            kind = kind_by_name(self.path.name)
            return f"a {kind.value}" if kind else ""
        if self.kind is ArtifactKind.WHEEL:
            return _foreign_wheel(self.path)
        windows = any(kind_by_name(file.name) is CodeFileKind.WINDOWS for file in self.code_files)
        return "a folder of libraries for Windows" if windows and not self.libraries else ""

    @cached_property
    def site_packages(self) -> tuple[Path, ...]:
        """The folders in which its packages are installed."""
        if self.kind is ArtifactKind.IMAGE:
            return sites_below(self.path)
        return find_sites(self.path) if self.path.is_dir() and not self.wheels else ()

    @cached_property
    def installed(self) -> tuple[InstalledDistribution, ...]:
        return tuple(one for site in self.site_packages for one in installed_in(site))

    @cached_property
    def packages(self) -> Mapping[str, tuple[Metadata, ...]]:
        """Whose a file is, by its name as it is installed: mostly of one package; what cannot be read has none."""
        owners: dict[str, tuple[Metadata, ...]] = {}
        for metadata, names in self._packages():
            for name in names:
                owners[name] = (*owners.get(name, ()), metadata)
        return owners

    def _packages(self) -> Iterator[tuple[Metadata, Iterable[str]]]:
        for wheel in self.wheels:
            with suppress(BadInputError), WheelArchive(wheel) as archive:
                yield read_metadata(archive), [installed_path(member.name) for member in archive.files]
        sites = sites_below(self.path) if self.kind is ArtifactKind.FOLDER else self.site_packages
        for dist_info in (found for site in sites for found in site.glob("*.dist-info")):
            with suppress(BadInputError):
                for one in find_installed(self.path, [dist_info])[0]:
                    yield one.metadata, map(installed_path, one.files)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What the build of a wheelhouse wrote down."""
        own = self.path / WHEELHOUSE_MANIFEST
        there = self.wheels and own.is_file()
        return read_wheelhouse_manifest(read_limited(own, Limit.MANIFEST), str(own)) if there else {}

    @cached_property
    def tailored(self) -> Mapping[str, Mapping[str, Any]]:
        """Each torchtailor.json that a cut left, by the name of its wheel, distribution, folder or file."""
        if self.wheels:
            return {name: inside.tailored for name, inside in self._dist_infos.items() if inside.tailored}
        return dict(self._tailored_beside() if self.kind is ArtifactKind.LIBRARY else self._tailored_inside())

    @property
    def torch_version(self) -> str:
        """The PyTorch inside, without the local part of its version; empty where there is none."""
        dist_infos = (found for site in self.site_packages for found in site.glob("torch-*.dist-info"))
        for path in self.wheels or dist_infos:
            distribution, _, rest = path.name.partition("-")
            if distribution == "torch":
                return rest.removesuffix(".dist-info").partition("-")[0].partition("+")[0]
        return ""

    @property
    def size(self) -> int:
        """Bytes on disk: of the wheels, or of the libraries where there are none."""
        return sum(wheel.stat().st_size for wheel in self.wheels) or sum(lib.size for lib in self.libraries)

    @property
    def complete(self) -> bool:
        """Whether it is meant to hold all that it needs."""
        if self.kind is ArtifactKind.ENVIRONMENT:
            return not sees_system_packages(self.path)
        return bool(self.manifest)

    @contextmanager
    def unpacked(self, library: LibraryFile) -> Iterator[Unpacked]:
        """A library as a file for as long as the block runs; a member of a wheel is checked against its RECORD."""
        with unpacked(library, self.recorded_hash(library)) as file:
            yield file

    def recorded_hash(self, library: LibraryFile) -> FileHash | None:
        """What RECORD says of a library in a wheel."""
        if library.member is None:
            return None
        row = self._dist_infos[library.owner].record.get(library.member.name)
        return row.hash if row else None

    def _files(
        self,
        *,
        code: bool,
        packed: Callable[[WheelArchive], Iterable[Member]],
        loose: Callable[[Iterable[Path]], Iterable[tuple[Path, os.stat_result]]],
    ) -> Iterator[LibraryFile]:
        """The files of wheels and folders that these find, or the one file, where it is of this kind."""
        for wheel in self.wheels:
            with WheelArchive(wheel) as archive:
                for member in packed(archive):
                    yield LibraryFile(installed_path(member.name), wheel.name, member.size, wheel, member)
        if self.kind is ArtifactKind.LIBRARY:
            if is_code_file(self.path.name) is code:
                yield LibraryFile(self.path.name, "", self.path.stat().st_size, self.path)
        elif not self.wheels:
            folders = self.site_packages if self.kind is ArtifactKind.ENVIRONMENT else (self.path,)
            for path, stat in loose(folders):
                name = installed_path(path.relative_to(self.path).as_posix())
                yield LibraryFile(name, "", stat.st_size, path)

    @cached_property
    def _dist_infos(self) -> Mapping[str, _DistInfo]:
        return {wheel.name: _DistInfo.of(wheel) for wheel in self.wheels}

    def _tailored_beside(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        beside = self.path.with_name(f"{self.path.name}.{MANIFEST}")
        if beside.is_file():
            manifest = read_tailored(read_limited(beside, Limit.MANIFEST), str(beside))
            rows = [{**row, "path": self.path.name} for row in manifest.get("libraries", ())]  # -o may have renamed it
            yield self.path.name, {**manifest, "libraries": rows}

    def _tailored_inside(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for site in self.site_packages:
            for found in site.glob(f"*.dist-info/{MANIFEST}"):
                yield found.parent.name, read_tailored(read_limited(found, Limit.MANIFEST), str(found))
        for folder in dict.fromkeys((self.path, *self.site_packages)):
            own = folder / MANIFEST
            if own.is_file():
                yield folder.name, read_tailored(read_limited(own, Limit.MANIFEST), str(own))


@contextmanager
def unpacked(library: LibraryFile, recorded: FileHash | None) -> Iterator[Unpacked]:
    """A library as a file for as long as the block runs; a member of a wheel must have the hash that is recorded."""
    if library.member is None:
        yield Unpacked(library.path, hash_file(library.path))
        return
    with tempfile.TemporaryDirectory(prefix="torchtailor-unpacked-") as folder:
        place = Path(folder, library.short_name)
        hashers = {name: hashlib.new(name) for name in {"sha256", recorded.algorithm if recorded else "sha256"}}
        try:
            with open_member(library.path, library.member) as source, place.open("wb") as file:
                for chunk in source.chunks():
                    file.write(chunk)
                    for hasher in hashers.values():
                        hasher.update(chunk)
        except OSError as error:
            raise EnvironmentProblem(
                f"{library.name} ({human_bytes(library.size)}) could not be unpacked to {folder}: {error.strerror}.",
                "Set TMPDIR to a folder on a disk with room for the largest libraries, one for each core.",
            ) from error
        if recorded and hashers[recorded.algorithm].digest() != recorded.digest:
            raise BadInputError(f"{library.name} does not have the hash that RECORD says", "Fetch the wheel again.")
        yield Unpacked(place, hashers["sha256"].hexdigest())


@dataclass(frozen=True, slots=True)
class _DistInfo:
    """What a wheel says of itself: its RECORD, and how it was cut."""

    record: Record
    tailored: Mapping[str, Any]

    @classmethod
    def of(cls, wheel: Path) -> _DistInfo:
        with WheelArchive(wheel) as archive:
            own = [name for name in archive.members if name.count("/") == 1]  # deeper ones are of vendored packages
            manifests = [name for name in own if name.endswith(f".dist-info/{MANIFEST}")]
            tailored = read_tailored(archive.read(manifests[-1]), f"{wheel.name}: {MANIFEST}") if manifests else {}
            records = [name for name in own if name.endswith(".dist-info/RECORD")]
            try:
                record = Record.parse(archive.read(records[0])) if len(records) == 1 else Record(())
            except BadInputError:  # its own check will say so
                record = Record(())
        return cls(record, tailored)


def is_conda(path: Path) -> bool:
    """Whether a path has the name of a conda package."""
    return path.name.endswith(_CONDA)


def open_artifact(path: Path) -> Artifact:
    """Find out what a path is; what it holds is read later."""
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            if str(path).startswith(_IMAGES):
                raise UsageError(f"{path} names an image.", "`torchtailor image` cuts images.")
            raise NoMatchError(f"{path} does not exist.", _WHAT_TO_GIVE)
        if not path.is_file():
            raise BadInputError(f"{path} is neither a file nor a folder.", _WHAT_TO_GIVE)
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from error
    if is_conda(path):
        raise ImpossibleError(
            f"{path.name} is a conda package, which is read and not cut.",
            "`torchtailor inspect` shows its GPU code; install it and cut the environment, or use PyTorch's wheels.",
        )
    if path.suffix == ".whl" or magic in _ZIP_MAGICS:
        return Artifact(path, ArtifactKind.WHEEL, (path,))
    if magic == MAGIC and is_placeholder(path):
        raise BadInputError(
            f"{path} was left out with --drop-unopened, and this file only says so.",
            "Run `torchtailor restore`, or install its package again.",
        )
    if magic == MAGIC or (magic and is_code_file(path.name)):
        return Artifact(path, ArtifactKind.LIBRARY)
    if not magic:
        raise BadInputError(f"{path} is empty.", "Fetch it again.")
    raise BadInputError(f"{path} is not a library, wheel, folder or environment.", _WHAT_TO_GIVE)


def _open_folder(path: Path) -> Artifact:
    if is_environment(path):
        return Artifact(path, ArtifactKind.ENVIRONMENT)
    if (path / "nix-support").is_dir() or str(path.resolve()).startswith("/nix/store/"):
        return Artifact(path, ArtifactKind.NIX)
    wheels = wheels_in(path)
    if wheels and not any(loose_libraries([path])):
        return Artifact(path, ArtifactKind.WHEELHOUSE, wheels)
    return Artifact(path, ArtifactKind.FOLDER)


def _foreign_wheel(path: Path) -> str:
    """`a wheel for Windows`, where its tags name no other system."""
    try:
        systems = {tag.partition("_")[0] for tag in WheelName.parse(path).platform.split(".")}
    except BadInputError:
        return ""
    names = {_SYSTEMS.get(system.rstrip("0123456789"), "") for system in systems}
    return "" if "" in names else f"a wheel for {' and '.join(sorted(names))}"


def nothing_in(path: Path) -> BadInputError:
    """The error for a folder in which there is nothing for us."""
    return BadInputError(f"{path} holds no libraries and no wheels.", _WHAT_TO_GIVE)
