"""What was changed in an environment, recorded before it happens, so that any interrupted run can be completed.

Everything lies in `.torchtailor` inside site-packages: `journal.jsonl` (one line per replaced file, on disk before the
file is replaced), `staging` (temporary files), `removed` (what is needed to restore) and `lock`. A line says what a
file was before and is afterwards; which of the two it is now is read from the file itself, so that the journal and the
environment cannot disagree. `reconcile` brings RECORD, manifests and the journal in line with the files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from torchtailor.artifact.installed import InstalledDistribution, read_installed
from torchtailor.disk import give_to, hash_file, locked, remove_locked, sync_folder, write_atomically
from torchtailor.errors import BadInputError
from torchtailor.tailoring.manifest import environment_manifest
from torchtailor.trust import Limit, PathPart, RelativePath, Sha256, Size, inside, leads_inside, read_limited
from torchtailor.wheels.distribution import MANIFEST
from torchtailor.wheels.record import FileHash, RecordRow

STATE_FOLDER = ".torchtailor"
RemovedName = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{24}-[0-9a-f]{24})?\Z")]
_LOCK_TIMEOUT = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class FileState:
    """The content of a file, by hash and size."""

    sha256: Sha256
    size: Size

    @classmethod
    def of(cls, path: Path, *, sizes: Iterable[int]) -> FileState | None:
        """The state of a file if it has one of these sizes; None if it has another or does not exist."""
        try:
            size = path.stat().st_size
            return cls(hash_file(path), size) if size in sizes else None
        except OSError:
            return None


class _Target(msgspec.Struct):
    gpus: list[str]


class _Library(msgspec.Struct):
    path: RelativePath
    size_before: Size
    size_after: Size


class _Options(msgspec.Struct):
    target: _Target


@dataclass(frozen=True, slots=True)
class Change:
    """One replaced file of an environment; paths are relative to site-packages."""

    path: RelativePath
    distributions: tuple[PathPart, ...]  # names of the .dist-info folders whose RECORD lists it
    before: FileState
    after: FileState
    removed: RemovedName  # the file in `removed` that turns after into before; empty without --keep-removed
    options: dict[str, Any]  # target and policy, as in the manifest
    library: dict[str, Any]  # the library's row of the manifest
    same_as: RelativePath | None = None  # the first name of the file, where this is a second one: a link

    def __post_init__(self) -> None:
        msgspec.convert(self.options, _Options)
        msgspec.convert(self.library, _Library)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(self.options["target"]["gpus"])


# By path, the changes in force of each file, oldest first.
Chains = dict[str, list[Change]]


class Journal:
    """The state folder of one site-packages, locked for one run at a time; made by `Journal.locked`."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.folder = site / STATE_FOLDER
        self.staging = self.folder / "staging"
        self.removed = self.folder / "removed"
        self.empty = False
        self._path = self.folder / "journal.jsonl"

    @classmethod
    @contextmanager
    def locked(cls, site: Path) -> Iterator[Journal]:
        """Take the lock; a second run on the same environment is refused. The kernel frees it when a run dies."""
        journal = cls(site)
        journal.check_links()
        # Workers of a run that was killed hold the lock until they have ended too.
        with locked(journal.folder / "lock", str(site), timeout=_LOCK_TIMEOUT):
            journal.check_links()
            journal.clear_staging()
            journal.removed.mkdir(exist_ok=True)
            journal.give_to_owner()
            try:
                yield journal
            finally:
                if journal.empty:
                    remove_locked(journal.folder)
                else:
                    shutil.rmtree(journal.staging, ignore_errors=True)

    def check_links(self) -> None:
        """Refuse a state folder of links: what they lead to is not ours to empty or overwrite."""
        for path in (self.folder, self.staging, self.removed, self._path, self.folder / "lock"):
            if path.is_symlink():
                raise BadInputError(
                    f"{path} is a link, which torchtailor never makes.", "Remove it, and reinstall what was cut."
                )

    def give_to_owner(self) -> None:
        """What root makes in a user's environment is the user's, who else could not restore it."""
        owner = self.site.stat()
        for path in (self.folder, self.staging, self.removed, self.folder / "lock"):
            give_to(path, owner)

    def clear_staging(self) -> None:
        """Delete temporary files that an interrupted run left."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir()

    def add(self, change: Change) -> None:
        """Record a change; it is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(_encode(change))
            file.flush()
            give_to(file.fileno(), self.site.stat())
            os.fsync(file.fileno())
        sync_folder(self.folder)

    def changes(self) -> list[Change]:
        """All changes in order. A last line that was truncated by a kill was never acted upon."""
        try:
            data = read_limited(self._path, Limit.JOURNAL)
        except FileNotFoundError:
            return []
        lines = data.split(b"\n")[:-1]
        try:
            return [msgspec.json.decode(line, type=Change) for line in lines]
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise BadInputError(
                f"{self._path} is damaged.", "Reinstall the packages that were cut, then remove that folder."
            ) from error

    def rewrite(self, changes: Iterable[Change]) -> None:
        """Keep only these changes, and of the removed bytes only what they need."""
        kept = list(changes)
        content = b"".join(map(_encode, kept))
        write_atomically(self._path, content, owner=self.site.stat(), durable=True, staging=self.staging)
        needed = {change.removed for change in kept}
        for path in self.removed.iterdir():
            if path.name not in needed and not path.is_dir():
                path.unlink()

    def delete(self) -> None:
        """Remove the state folder when the lock is released, so that nothing of torchtailor is left."""
        self.empty = True


def reconcile(journal: Journal, known: Mapping[str, FileState] | None = None) -> Chains:
    """Complete whatever an interrupted run left, and return the changes in force.

    A file that is neither what a change found nor what it made was reinstalled or changed by something else: its
    changes are dropped, with the removed bytes. `known` are files that were just put in place and need no reading.
    """
    recorded: Chains = {}
    for change in journal.changes():
        recorded.setdefault(change.path, []).append(change)
    actual = {path: (known or {}).get(path) or _actual(journal.site, path, chain) for path, chain in recorded.items()}
    in_force = {path: _in_force(chain, actual[path]) for path, chain in recorded.items()}
    chains = {path: chain for path, chain in in_force.items() if chain}
    names = {name for chain in recorded.values() for change in chain for name in change.distributions}
    places = [journal.site / name for name in sorted(names) if name.endswith(".dist-info")]
    folders = [place for place in places if place.is_dir() and not place.is_symlink()]
    for one in read_installed(journal.site, folders):
        states = {path: state for path in one.files if (state := actual.get(path))}
        _update_distribution(journal, one, states, chains)
    journal.rewrite(change for chain in chains.values() for change in chain)
    return chains


def _update_distribution(
    journal: Journal, one: InstalledDistribution, states: Mapping[str, FileState], chains: Chains
) -> None:
    """Write a distribution's manifest and RECORD so that they describe its files."""
    rows = [_merged_row(chains[path]) for path in sorted(one.files) if path in chains]
    manifest_path = one.dist_info / MANIFEST
    manifest_name = manifest_path.relative_to(one.dist_info.parent).as_posix()
    changes: dict[str, RecordRow | None] = {}
    if rows:
        newest = chains[next(path for path in sorted(one.files) if path in chains)][-1]
        document = environment_manifest(newest.options, one.metadata.name, one.metadata.version, rows)
        if not manifest_path.is_file() or manifest_path.read_bytes() != document:
            owner = one.dist_info.stat()
            write_atomically(manifest_path, document, owner=owner, durable=True, staging=journal.staging)
        changes[manifest_name] = RecordRow(manifest_name, FileHash.of(document), len(document))
    else:
        manifest_path.unlink(missing_ok=True)
        changes[manifest_name] = None
    for path, state in states.items():
        row = one.files[path]
        changes[row.path] = RecordRow(row.path, FileHash.from_hex(state.sha256), state.size)
    data = one.record.updated(changes).encode()
    if data != one.record_path.read_bytes():
        old = one.record_path.stat()
        mode = old.st_mode & 0o777
        write_atomically(one.record_path, data, mode=mode, owner=old, durable=True, staging=journal.staging)


def _merged_row(chain: Sequence[Change]) -> dict[str, Any]:
    """A library's row in the manifest, from the stock file to what it is now."""
    first, last = chain[0].library, chain[-1].library
    return {**last, **{key: first[key] for key in ("size_before", "gpu_before", "sha256_before") if key in first}}


def _actual(site: Path, path: str, chain: Sequence[Change]) -> FileState | None:
    place = inside(site, path)
    if not leads_inside(site, place):
        return None
    known = [state for change in chain for state in (change.before, change.after)]
    state = FileState.of(place, sizes={state.size for state in known})
    return state if state in known else None


def _in_force(chain: list[Change], actual: FileState | None) -> list[Change]:
    for index in reversed(range(len(chain))):
        if chain[index].after == actual:
            start = index
            while start and chain[start - 1].after == chain[start].before:
                start -= 1
            return chain[start : index + 1]
    return []


def _encode(change: Change) -> bytes:
    return json.dumps(asdict(change), sort_keys=True, separators=(",", ":")).encode() + b"\n"
