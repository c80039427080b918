"""Sizes of wheels on an index, of which only the table and the libraries are fetched."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from torchtailor.core.disk import disk_errors
from torchtailor.core.errors import NoMatchError
from torchtailor.core.progress import Progress
from torchtailor.core.shapes import shaped
from torchtailor.core.version import code_key
from torchtailor.fetch.client import Client, worker_threads
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.metadata import RangeFile
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.target import Target
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.artifact.libraries import LibraryFile, is_shared_name, may_be_elf
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.wheels.archive import Member, locate, read_table
from torchtailor.verification.inspection.measure import SizeRow, Sizes, measure, measure_libraries, rows_of
from torchtailor.verification.inspection.parts import ByteClass, class_of_file

_log = logging.getLogger(__name__)
_STEP = 8 << 20  # bytes of one request
_PARALLEL = 4
CHECK_NAME = "Check the name, and the indexes that pip and uv are configured for."
_PROGRAM = 1 << 20  # bytes: smaller files that are no libraries by their name are not fetched to see what they are


def requirement(text: str) -> Requirement | None:
    """What `torch==2.11.0` or `torch` asks for; None where a word is no requirement."""
    try:
        asked = Requirement(text)
    except InvalidRequirement:
        return None
    return None if asked.url or asked.marker or asked.extras else asked


def released_versions(finder: Finder, project: str, target: Target) -> dict[Version, WheelFile]:
    """The wheel of each version for a platform, oldest first: for the target's Python, else for the newest."""
    best: dict[Version, tuple[tuple[int, ...], WheelFile]] = {}
    for file in finder.all_files(project):
        _, version, _, tags = file.parsed
        if file.yanked or version.is_prerelease:
            continue
        rank = target.rank(tags)
        if rank is not None and target.accepts_python(file.requires_python):
            key: tuple[int, ...] = (1, 0, -rank)
        elif any(tag.platform.endswith(target.arch) and "linux" in tag.platform for tag in tags):
            key = (0, max(_python(tag.interpreter) for tag in tags), 0)
        else:
            continue
        if version not in best or key > best[version][0]:
            best[version] = key, file
    return {version: best[version][1] for version in sorted(best)}


def released_wheel(finder: Finder, asked: Requirement, target: Target) -> WheelFile:
    """The newest wheel that a requirement allows."""
    versions = released_versions(finder, asked.name, target)
    allowed = [version for version in versions if asked.specifier.contains(version, prereleases=True)]
    if not allowed:
        known = ", ".join(map(str, list(versions)[-5:]))
        raise NoMatchError(
            f"The configured indexes have no wheel of {asked} for {target.arch}.",
            finder.elsewhere(asked.name) or (f"They have {known}." if known else CHECK_NAME),
        )
    return versions[allowed[-1]]


def measure_released(
    finder: Finder, file: WheelFile, *, kernels: bool = False, progress: Progress | None = None
) -> Sizes:
    """The sizes of a wheel: from the cache, the wheel itself where it is at hand, or its libraries alone."""
    progress = progress or Progress()
    key = f"{file.key} {kernels} {code_key()}"
    if (kept := finder.cache.read_note("sizes", key)) is not None:
        try:
            return msgspec.msgpack.decode(kept, type=shaped(Sizes))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass  # a damaged note is written anew
    at_hand = file.local_path or (finder.cache.locate(file.sha256, file.filename) if file.sha256 else None)
    if at_hand:
        sizes = measure(open_artifact(at_hand), kernels=kernels, progress=progress)
    else:
        sizes = _measure_remote(finder.client, file, progress, kernels=kernels)
    sizes = msgspec.structs.replace(sizes, name=file.filename)
    finder.cache.write_note("sizes", key, msgspec.msgpack.encode(sizes))
    return sizes


def _measure_remote(client: Client, file: WheelFile, progress: Progress, *, kernels: bool) -> Sizes:
    remote = RangeFile(client, file.url)
    members = [member for member in read_table(remote, file.shown, remote.size) if not member.is_dir]
    libraries = [member for member in members if _may_have_code(member)]
    _log.info("of %s %d of %d files are fetched", file.filename, len(libraries), len(members))
    place = Path(tempfile.gettempdir())
    with (
        disk_errors(place, unchanged="Set TMPDIR to a folder on a disk with room for the wheel's libraries."),
        tempfile.TemporaryDirectory(prefix="torchtailor-sizes-") as folder,
    ):
        fetched = {
            member.name: LibraryFile(
                installed_path(member.name), file.filename, member.size, spool, replace(member, data_offset=0)
            )
            for member, spool in _fetch(client, file, remote, libraries, Path(folder), progress)
        }
        measured = measure_libraries([*fetched.values()], kernels=kernels, progress=progress)
    rest = remote.size - sum(member.packed_size for member in members)
    rows = [SizeRow(file.name, file.filename, ByteClass.ZIP, "", 0, rest)]
    for member in members:
        name = installed_path(member.name)
        if library := fetched.get(member.name):
            rows += rows_of(file.name, library, measured[library])
        else:
            rows.append(SizeRow(file.name, name, class_of_file(name), "", member.size, member.packed_size))
    return Sizes.of(file.filename, rows, measured)


def _may_have_code(member: Member) -> bool:
    return is_shared_name(member.name) or (member.size >= _PROGRAM and may_be_elf(member.name))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a member to fetch."""

    spool: Path
    start: int  # in the wheel
    size: int
    place: int  # in the spool


def _fetch(
    client: Client, file: WheelFile, remote: RangeFile, members: Iterable[Member], folder: Path, progress: Progress
) -> Iterator[tuple[Member, Path]]:
    """The packed bytes of members, each as a file of its own."""
    spools: list[tuple[Member, Path]] = []
    pieces: list[_Piece] = []
    for number, member in enumerate(members):
        found = locate(remote.read_at, file.shown, remote.size, member)
        spool = folder / f"{number}"
        spool.touch()
        spools.append((found, spool))
        pieces += [
            _Piece(spool, found.data_offset + place, min(_STEP, found.packed_size - place), place)
            for place in range(0, found.packed_size, _STEP)
        ]
    progress.started(file.filename, sum(piece.size for piece in pieces), 0)

    def one(piece: _Piece) -> None:
        wanted = f"bytes={piece.start}-{piece.start + piece.size - 1}"
        body = client.get_range(file.url, wanted, piece.size).body
        with piece.spool.open("r+b") as out:
            out.seek(piece.place)
            out.write(body)
        progress.advanced(file.filename, len(body))

    with worker_threads(_PARALLEL) as pool:
        for _ in pool.map(one, pieces):
            pass
    progress.finished(file.filename)
    yield from spools


def _python(interpreter: str) -> int:
    """313 of `cp313`."""
    digits = interpreter.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits.isdigit() and len(digits) <= 4 else 0
