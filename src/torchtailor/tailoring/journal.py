"""What was changed in an environment, recorded before it happens, so that any interrupted run can be completed.

Everything lies in `.torchtailor` inside site-packages: `journal.jsonl` (one line per file that was replaced or left
out, on disk before that happens), `staging` (temporary files), `removed` (what is needed to restore) and `lock`. A line
says what a file was before and is afterwards; which of the two it is now is read from the file itself, so that the
journal and the environment cannot disagree. `reconcile` brings RECORD, manifests and the journal in line with them.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from torchtailor.core.disk import give_to, locked, remove_locked, sync_folder, write_atomically
from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, PathPart, RelativePath, Sha256, Size, inside, leads_inside, read_limited
from torchtailor.surgery.cut import GPU_ONLY
from torchtailor.surgery.cut_document import CutDocument
from torchtailor.tailoring.caches import BakedCaches
from torchtailor.tailoring.left_out import is_stand_in
from torchtailor.tailoring.manifest import StandInDocument, added_json, environment_manifest
from torchtailor.tailoring.module_index import ModuleIndex
from torchtailor.tailoring.moved_paths import MovedPath
from torchtailor.tailoring.tree import FileState, Gone, NewFile, changed_rows, remove_empty
from torchtailor.trees.artifact.installed import InstalledDistribution, read_installed
from torchtailor.trees.wheels.distribution import MANIFEST
from torchtailor.trees.wheels.record import FileHash, RecordRow
from torchtailor.workload.pack import PACK_FOLDER

STATE_FOLDER = ".torchtailor"
RemovedName = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{24}-[0-9a-f]{24})?\Z")]
_LOCK_TIMEOUT = 1.0  # seconds


class _Library(msgspec.Struct):
    path: RelativePath
    size_before: Size
    size_after: Size


class _Dropped(msgspec.Struct):
    path: RelativePath
    rule: str
    size: Size


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that came with a change, and goes with it: a pack, or the hook."""

    path: RelativePath
    sha256: Sha256
    size: Size

    @classmethod
    def of(cls, file: NewFile) -> AddedFile:
        return cls(file.path, file.state.sha256, file.state.size)


@dataclass(frozen=True, slots=True)
class Change:
    """One file of an environment that was replaced, left out or added; paths are relative to site-packages."""

    path: RelativePath
    distributions: tuple[PathPart, ...]  # names of the .dist-info folders whose RECORD lists it
    before: FileState | None  # None: there was no such file
    after: FileState | None  # None: the file was left out, and nothing stands in for it in its place
    removed: RemovedName  # the file in `removed` that turns after into before; empty without --keep-removed
    options: CutDocument
    library: dict[str, Any] | None  # the library's row of the manifest
    same_as: RelativePath | None = None  # the first name of the file, where this is a second one: a link
    dropped: dict[str, Any] | None = None  # the row of a file that was left out
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)] = 0o644  # of a file that was left out
    record_rows: dict[PathPart, int] = field(default_factory=dict)  # where it was in the RECORD of each distribution
    added: tuple[AddedFile, ...] = ()
    stand_in: dict[str, Any] | None = None  # the row of a library in the place of one of NVIDIA's
    index: dict[str, Any] | None = None  # the row of an index of modules
    caches: dict[str, Any] | None = None  # the row of compile caches
    requirements: dict[str, str | None] | None = None  # of METADATA: what is left of each that changed
    moved: MovedPath | None = None  # where a file, or a whole folder, lies now

    def __post_init__(self) -> None:
        rows = {_Library: self.library, _Dropped: self.dropped, StandInDocument: self.stand_in, ModuleIndex: self.index}
        rows[BakedCaches] = self.caches
        said = [(kind, row) for kind, row in rows.items() if row is not None]
        what = len(said) + (self.requirements is not None) + (self.moved is not None)
        if what != 1 or (self.after is None and not self.dropped and not self.moved):
            raise ValueError("A file is either replaced, left out, moved or added.")
        if self.before is None and not self.is_new and not self.moved:
            raise ValueError("What was replaced or left out was there before.")
        if self.moved and (self.moved.path != self.path or self.before or self.after):
            raise ValueError("What was moved is what it was before.")
        for kind, row in said:
            msgspec.convert(row, shaped(kind))

    @property
    def size_before(self) -> int:
        return self.before.size if self.before else self.moved.size if self.moved else 0

    @property
    def is_new(self) -> bool:
        """Whether it may have had no file before."""
        return bool(self.stand_in or self.index or self.caches)

    @property
    def of_no_use(self) -> bool:
        """Whether it left because only a GPU needs it, mostly with its whole package."""
        return self.dropped is not None and self.dropped["rule"] == GPU_ONLY

    @property
    def state_after(self) -> FileState | Gone:
        return self.after or (Gone.MOVED if self.moved else Gone.GONE)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.options.target.gpus


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

    def add(self, *changes: Change) -> None:
        """Record changes; they are on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(b"".join(map(_encode, changes)))
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
            return [msgspec.json.decode(line, type=shaped(Change)) for line in lines]
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


def changes_in_force(site: Path) -> Chains:
    """What earlier runs did that still holds; nothing is completed or forgotten, as a dry run wants it."""
    journal = Journal(site)
    journal.check_links()
    return _read(journal, {})[2]


def _read(
    journal: Journal, known: Mapping[str, FileState | Gone]
) -> tuple[Chains, dict[str, FileState | Gone | None], Chains]:
    """All changes by path, what each file is now, and the changes that hold."""
    recorded: Chains = {}
    for change in journal.changes():
        recorded.setdefault(change.path, []).append(change)
    actual = {path: known.get(path) or _actual(journal.site, path, chain) for path, chain in recorded.items()}
    in_force = {path: _in_force(chain, actual[path]) for path, chain in recorded.items()}
    return recorded, actual, {path: chain for path, chain in in_force.items() if chain}


def reconcile(journal: Journal, known: Mapping[str, FileState | Gone] | None = None) -> Chains:
    """Complete whatever an interrupted run left, and return the changes in force.

    A file that is neither what a change found nor what it made was reinstalled or changed by something else: its
    changes are forgotten, with the removed bytes. `known` are files that were just put in place and need no reading.
    """
    recorded, actual, chains = _read(journal, known or {})
    for chain in chains.values():
        if moved := chain[-1].moved:
            moved.move(journal.site)
    names = {name for chain in recorded.values() for change in chain for name in change.distributions}
    places = [journal.site / name for name in sorted(names) if name.endswith(".dist-info")]
    folders = [place for place in places if place.is_dir() and not place.is_symlink()]
    for one in read_installed(journal.site, folders):
        own = {path: chain for path, chain in recorded.items() if _belongs(path, chain, one)}
        written = {f"{one.dist_info.name}/{name}" for name in (one.record_path.name, MANIFEST)}  # here, by what is so
        at = {path: actual.get(path) for path in own if path not in written}
        states = {path: state for path, state in at.items() if state and state is not Gone.MOVED}
        _update_distribution(journal, one, states, {path: chains[path] for path in own if path in chains}, own)
    _remove_added(journal.site, recorded, chains)
    remove_empty(journal.site, [path for path, chain in chains.items() if chain[-1].of_no_use])
    journal.rewrite(change for chain in chains.values() for change in chain)
    return chains


def _remove_added(site: Path, recorded: Chains, chains: Chains) -> None:
    """Delete what came with changes that are undone, and the folders that it leaves empty."""
    wanted = {file.path for chain in chains.values() for file in chain[-1].added}
    for path in {file.path for chain in recorded.values() for change in chain for file in change.added} - wanted:
        place = inside(site, path)
        if not leads_inside(site, place) or not (path.startswith(f"{PACK_FOLDER}/") or is_stand_in(place)):
            continue
        place.unlink(missing_ok=True)
        if path.endswith(".py"):
            shutil.rmtree(place.parent / "__pycache__", ignore_errors=True)
        for folder in (place.parent, place.parent.parent):
            with suppress(OSError):
                folder.rmdir() if folder != site else None


def _belongs(path: str, chain: Sequence[Change], one: InstalledDistribution) -> bool:
    """Whether a file is a distribution's: its RECORD lists it, or did until the file was left out."""
    return path in one.files or any(
        (change.dropped or change.is_new or change.moved) and one.dist_info.name in change.distributions
        for change in chain
    )


def _update_distribution(
    journal: Journal,
    one: InstalledDistribution,
    states: Mapping[str, FileState | Gone],
    chains: Chains,
    recorded: Chains,
) -> None:
    """Write a distribution's manifest and RECORD so that they describe its files."""
    in_force = [chains[path] for path in sorted(chains)]
    libraries = [_merged_row(chain) for chain in in_force if chain[-1].library]
    dropped = [chain[-1].dropped for chain in in_force if chain[-1].dropped]
    manifest_path = one.dist_info / MANIFEST
    manifest_name = manifest_path.relative_to(one.dist_info.parent).as_posix()
    changes: dict[str, RecordRow | None] = {}
    if in_force:
        more = added_json(
            [chain[-1].stand_in for chain in in_force if chain[-1].stand_in],
            {text: left for chain in in_force for text, left in (chain[-1].requirements or {}).items()},
            [chain[-1].index for chain in in_force if chain[-1].index],
            [chain[-1].caches for chain in in_force if chain[-1].caches],
        )
        name, version = one.metadata.name, one.metadata.version
        moved = [chain[-1].moved for chain in in_force if chain[-1].moved]
        document = environment_manifest(_options(in_force), name, version, libraries, dropped, more, moved)
        if not manifest_path.is_file() or manifest_path.read_bytes() != document:
            owner = one.dist_info.stat()
            write_atomically(manifest_path, document, owner=owner, durable=True, staging=journal.staging)
        changes[manifest_name] = RecordRow(manifest_name, FileHash.of(document), len(document))
    else:
        manifest_path.unlink(missing_ok=True)
        changes[manifest_name] = None
    changes |= _added_rows(one, chains, recorded)
    hashed = [(path, row) for path, row in one.files.items() if row.hash or states.get(path) is Gone.GONE]
    changes |= changed_rows(hashed, states.get)  # of compiled Python no RECORD has hashes
    again: list[tuple[int, RecordRow]] = []
    for path, state in states.items():
        if path in one.files or not isinstance(state, FileState):
            continue
        if any(change.is_new for change in recorded[path]):
            changes[path] = state.row(path)
        else:  # it is back
            places = (change.record_rows.get(one.dist_info.name) for change in recorded[path])
            row = RecordRow(path) if path.endswith(".pyc") else state.row(path)
            again.append((next((place for place in places if place is not None), 0), row))
    data = one.record.updated(changes).with_rows_at(again).encode()
    if data != one.record_path.read_bytes():
        old = one.record_path.stat()
        # when it was installed: for an index of modules that came with it, what is newer was changed
        how: dict[str, Any] = {"mode": old.st_mode & 0o777, "modified": old.st_mtime_ns}
        write_atomically(one.record_path, data, owner=old, durable=True, staging=journal.staging, **how)


def _added_rows(one: InstalledDistribution, chains: Chains, recorded: Chains) -> dict[str, RecordRow | None]:
    """The rows of packs and hook in the RECORD of the distribution whose they are: the first that has the library."""
    mine = [
        change for chain in recorded.values() for change in chain if change.distributions[:1] == (one.dist_info.name,)
    ]
    rows: dict[str, RecordRow | None] = {file.path: None for change in mine for file in change.added}
    rows |= {change.moved.row(one.files).path: None for change in mine if change.moved}
    for last in (chain[-1] for chain in chains.values() if chain[-1].distributions[:1] == (one.dist_info.name,)):
        new = [FileState(file.sha256, file.size).row(file.path) for file in last.added]
        new += [last.moved.row(one.files)] if last.moved else []
        rows |= {row.path: row for row in new}
    return rows


def _options(chains: Sequence[Sequence[Change]]) -> CutDocument:
    """Target and policy of the newest cut, and the rules of all."""
    options = chains[0][-1].options
    rules = {rule for chain in chains for rule in chain[-1].options.policy.drop}
    return msgspec.structs.replace(options, policy=msgspec.structs.replace(options.policy, drop=tuple(sorted(rules))))


def _merged_row(chain: Sequence[Change]) -> dict[str, Any]:
    """A library's row in the manifest, from the stock file to what it is now."""
    first, last = chain[0].library or {}, chain[-1].library or {}
    return {**last, **{key: first[key] for key in ("size_before", "gpu_before", "sha256_before") if key in first}}


def _actual(site: Path, path: str, chain: Sequence[Change]) -> FileState | Gone | None:
    place = inside(site, path)
    if not leads_inside(site, place):
        return None
    owners = (site / name for change in chain if not change.library for name in change.distributions)
    if moved := chain[-1].moved:
        return (
            Gone.MOVED
            if moved.is_linked(site) or (moved.is_halfway(site) and any(owner.is_dir() for owner in owners))
            else None
        )
    if not os.path.lexists(place):
        if chain[-1].of_no_use and not any(_installed_again(site, name) for name in chain[-1].distributions):
            return Gone.GONE
        return Gone.GONE if any(owner.is_dir() for owner in owners) else None  # else its package was uninstalled
    known = [state for change in chain for state in (change.before, change.after) if state]
    state = FileState.of(place, sizes={state.size for state in known})
    return state if state in known else None


def _installed_again(site: Path, dist_info: str) -> bool:
    """Whether a package that left as a whole is there in another version."""
    name = dist_info.partition("-")[0]
    return any(other.name != dist_info for other in site.glob(f"{glob.escape(name)}-*.dist-info"))


def _in_force(chain: list[Change], actual: FileState | Gone | None) -> list[Change]:
    for index in reversed(range(len(chain))):
        gone = actual is Gone.GONE and chain[index].dropped  # also what stood in for it
        if chain[index].state_after == actual or gone:
            start = index
            while start and chain[start].before and chain[start - 1].after == chain[start].before:
                start -= 1
            return chain[start : index + 1]
    return []


def _encode(change: Change) -> bytes:
    return msgspec.json.encode(change, order="sorted") + b"\n"
