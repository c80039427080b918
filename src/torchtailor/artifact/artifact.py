"""What TARGET is: a library, a wheel, a wheelhouse, a folder, an environment, the result of a Nix build."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from torchtailor.artifact.inputs import InputKind, open_input, site_packages
from torchtailor.binary.elf_headers import MAGIC
from torchtailor.disk import hash_file
from torchtailor.errors import BadInputError, EnvironmentProblem, NoMatchError
from torchtailor.ui.format import human_bytes
from torchtailor.wheels.archive import Member, WheelArchive, open_member
from torchtailor.wheels.distribution import MANIFEST
from torchtailor.wheels.name import wheels_in
from torchtailor.wheels.record import FileHash, Record

WHEELHOUSE_MANIFEST = "manifest.json"
_SITE = "site-packages/"


class TargetKind(Enum):
    """The forms in which an artifact is given to us."""

    LIBRARY = "library"
    WHEEL = "wheel"
    WHEELHOUSE = "wheelhouse"
    FOLDER = "folder"
    ENVIRONMENT = "environment"
    NIX = "Nix result"


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """One ELF file of an artifact, loose or inside a wheel."""

    name: str  # as it is installed: relative to site-packages
    owner: str  # the wheel it is in; empty for a loose file
    size: int
    path: Path  # of the file, or of the wheel
    member: Member | None = None
    recorded: FileHash | None = None  # what the wheel's RECORD says of it

    @property
    def short_name(self) -> str:
        return self.name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Artifact:
    """A target, its libraries, and what torchtailor wrote into it when it was made."""

    path: Path
    kind: TargetKind
    wheels: tuple[Path, ...]
    libraries: tuple[LibraryFile, ...]
    manifest: Mapping[str, Any]  # of the wheelhouse
    tailored: Mapping[str, Mapping[str, Any]]  # each torchtailor.json, by name of wheel, distribution, folder, file

    @property
    def size(self) -> int:
        """Bytes on disk: of the wheels, or of the libraries where there are none."""
        return sum(wheel.stat().st_size for wheel in self.wheels) or sum(lib.size for lib in self.libraries)

    @property
    def torch_version(self) -> str:
        """The PyTorch inside, without the local part of its version; empty where there is none."""
        names = [wheel.name for wheel in self.wheels] or [found.name for found in self._dist_infos()]
        for name in names:
            distribution, _, rest = name.partition("-")
            if distribution == "torch":
                return rest.removesuffix(".dist-info").partition("-")[0].partition("+")[0]
        return ""

    def _dist_infos(self) -> Iterator[Path]:
        for root in _roots(self.path):
            yield from root.glob("torch-*.dist-info")

    @property
    def complete(self) -> bool:
        """Whether it is meant to hold all that it needs."""
        return self.kind is TargetKind.ENVIRONMENT or bool(self.manifest)


def open_artifact(path: Path) -> Artifact:
    """Find out what a path is, and list its libraries; contents are read later."""
    if not path.exists():
        raise NoMatchError(f"{path} does not exist.", "Give a wheel, a wheelhouse, a folder or an environment.")
    if path.is_dir() and (wheels := wheels_in(path)):
        return _of_wheels(path, TargetKind.WHEELHOUSE, wheels)
    if path.is_file() and path.suffix == ".whl":
        return _of_wheels(path, TargetKind.WHEEL, (path,))
    found = open_input(path)
    kind = {
        InputKind.LIBRARY: TargetKind.LIBRARY,
        InputKind.ENVIRONMENT: TargetKind.ENVIRONMENT,
    }.get(found.kind, TargetKind.NIX if _from_nix(path) else TargetKind.FOLDER)
    libraries = tuple(
        LibraryFile(_installed_name(item.name, kind), "", item.size, item.where)
        for item in found.items
        if isinstance(item.where, Path)
    )
    if not libraries:
        raise BadInputError(f"{path} holds no libraries.", "Give a folder or environment in which torch is.")
    return Artifact(path, kind, (), libraries, {}, dict(_installed_manifests(path)))


def _of_wheels(path: Path, kind: TargetKind, wheels: tuple[Path, ...]) -> Artifact:
    libraries: list[LibraryFile] = []
    tailored: dict[str, Mapping[str, Any]] = {}
    for wheel in wheels:
        with WheelArchive(wheel) as archive:
            record = _record(archive)
            for member in archive.files:
                if archive.begins_with(member, MAGIC):
                    row = record.get(member.name)
                    hashed = row.hash if row else None
                    libraries.append(LibraryFile(member.name, wheel.name, member.size, wheel, member, hashed))
                elif member.name.endswith(f".dist-info/{MANIFEST}"):
                    tailored[wheel.name] = _json(archive.read(member.name), f"{wheel.name}: {MANIFEST}")
    own = path / WHEELHOUSE_MANIFEST
    manifest = _json(own.read_bytes(), str(own)) if own.is_file() else {}
    return Artifact(path, kind, wheels, tuple(libraries), manifest, tailored)


def _record(archive: WheelArchive) -> Record:
    """The wheel's RECORD; an empty one where it cannot be read, which its own check will say."""
    names = [name for name in archive.members if name.endswith(".dist-info/RECORD")]
    try:
        return Record.parse(archive.read(names[0])) if len(names) == 1 else Record(())
    except BadInputError:
        return Record(())


def _installed_manifests(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What `tailor` left: beside a library, in a folder it made, or in each distribution of an environment."""
    if path.is_file():
        beside = path.with_name(f"{path.name}.{MANIFEST}")
        if beside.is_file():
            manifest = _json(beside.read_bytes(), str(beside))
            rows = [{**row, "path": path.name} for row in manifest.get("libraries", ())]  # -o may have renamed it
            yield path.name, {**manifest, "libraries": rows}
        return
    roots = _roots(path)
    for root in roots:
        for found in root.glob(f"*.dist-info/{MANIFEST}"):
            yield found.parent.name, _json(found.read_bytes(), str(found))
    for folder in dict.fromkeys((path, *roots)):
        own = folder / MANIFEST
        if own.is_file():
            yield folder.name, _json(own.read_bytes(), str(own))


def _roots(path: Path) -> tuple[Path, ...]:
    """Where packages may be in a folder: its site-packages, or itself."""
    if not path.is_dir():
        return ()
    return site_packages(path) or (path, *path.glob("lib/python3*/site-packages"))


def _json(data: bytes, owner: str) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise BadInputError(f"{owner} is not JSON: {error}.", "Fetch or build it again.") from error
    if not isinstance(document, dict):
        raise BadInputError(f"{owner} is not a manifest of torchtailor.", "Fetch or build it again.")
    return document


def _from_nix(path: Path) -> bool:
    return (path / "nix-support").is_dir() or str(path.resolve()).startswith("/nix/store/")


def _installed_name(name: str, kind: TargetKind) -> str:
    """`lib/python3.13/site-packages/torch/lib/x.so` -> `torch/lib/x.so`, as a wheel calls it."""
    if kind is TargetKind.LIBRARY:
        return Path(name).name
    return installed_path(name)


def installed_path(path: str) -> str:
    """The part of a path below site-packages, which is all of it where there is none."""
    return path.rpartition(_SITE)[2]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A library as a file that can be mapped."""

    path: Path
    sha256: str


@contextmanager
def unpacked(library: LibraryFile) -> Iterator[Unpacked]:
    """A library as a file for as long as the block runs; a member of a wheel is checked against RECORD meanwhile."""
    if library.member is None:
        yield Unpacked(library.path, hash_file(library.path))
        return
    with tempfile.TemporaryDirectory(prefix="torchtailor-verify-") as folder:
        place = Path(folder, library.short_name)
        hasher = hashlib.sha256()
        try:
            with open_member(library.path, library.member) as chunks, place.open("wb") as file:
                for chunk in chunks:
                    hasher.update(chunk)
                    file.write(chunk)
        except OSError as error:
            raise EnvironmentProblem(
                f"{library.name} ({human_bytes(library.size)}) could not be unpacked to {folder}: {error.strerror}.",
                "Set TMPDIR to a folder on a disk with room for the largest library.",
            ) from error
        if library.recorded and str(library.recorded) != str(FileHash.from_hex(hasher.hexdigest())):
            raise BadInputError(f"{library.name} does not have the hash that RECORD says", "Fetch the wheel again.")
        yield Unpacked(place, hasher.hexdigest())
