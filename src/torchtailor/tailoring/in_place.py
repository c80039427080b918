"""Changes an environment in place: each file by one rename, and in the journal before it happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from torchtailor.core.disk import copy_attributes, give_to, hash_file, sync_folder, write_atomically
from torchtailor.core.documents import plain
from torchtailor.core.format import counted
from torchtailor.core.progress import Progress
from torchtailor.core.trust import inside
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import CutDocument
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import BakedCaches, MadeCaches
from torchtailor.tailoring.delta import write_whole
from torchtailor.tailoring.environment_plan import EnvironmentPlan, PlaceJob, removed_name, stamp_of
from torchtailor.tailoring.journal import AddedFile, Chains, Change, Journal, reconcile
from torchtailor.tailoring.left_out import stand_ins
from torchtailor.tailoring.manifest import library_json, stand_in_json
from torchtailor.tailoring.module_index import MadeIndex, ModuleIndex
from torchtailor.tailoring.tree import FileState, Gone, InstalledTree, NewFile
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.installed import InstalledDistribution

_LIBRARY_MODE = 0o755


@dataclass(frozen=True)
class InPlace:
    """The changes of one run; `known` is what the files are that it has put in place or need no reading."""

    journal: Journal
    tree: InstalledTree
    document: CutDocument
    known: dict[str, FileState | Gone]

    def replace_library(self, job: PlaceJob, staged: LibraryResult) -> LibraryResult:
        """Put a cut library in place, under all its names."""
        names = (job.name, *(name for name, _ in job.second_names))
        for name in names:
            self.known.pop(name, None)
        result = self._put(job, staged)
        if result.status.changed:
            self.known.update(dict.fromkeys(names, FileState(result.sha256_out, result.size_after)))
        return result

    def so_far(self, chains: Chains) -> str:
        """What a run that was stopped has changed; `chains` are what was changed before it."""
        before = {path: chain[-1].state_after for path, chain in chains.items()}
        changed = sum(before.get(path) != state for path, state in self.known.items())
        if not changed:
            return f"Nothing was changed in {self.journal.site}."
        return f"Changed so far in {self.journal.site}: {counted(changed, 'file')}, each whole and recorded."

    def settle(self) -> None:
        """Bring RECORDs, manifests and the journal in line with the files."""
        if not reconcile(self.journal, self.known):
            self.journal.delete()

    def _put(self, job: PlaceJob, result: LibraryResult) -> LibraryResult:
        if not result.status.changed:
            return result
        names = ((job.name, job.owners), *job.second_names)
        for name, owners in names:
            if other := _other_hash(name, owners, result.sha256_in):
                reason = f"its hash is not the one in the RECORD of {other}; reinstall that package"
                return LibraryResult.not_read(LibraryStatus.SKIPPED, job.name, job.size, reason)
        if not job.is_unchanged:
            return _replaced_meanwhile(job)
        give_to(job.target, job.source.lstat())
        copy_attributes(job.source, job.target)
        added = job.added(self.tree, result)
        rows = tuple(map(AddedFile.of, added))
        for name, owners in names:
            self.journal.add(replace(_change(job, name, owners, result, self.document), added=rows))
        for file in added:
            staged, place = file.put(job.target.parent / "pack"), inside(self.journal.site, file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            give_to(staged, job.source.lstat())
            staged.replace(place)
            sync_folder(place.parent)
        if not job.is_unchanged:  # the journal took a while; what it says of this file is dropped at the end
            return _replaced_meanwhile(job)
        job.target.replace(job.source)  # never written into: other names of the old file (uv's cache) keep their bytes
        for name, _ in job.second_names:
            link_again(job.source, self.journal.site / name, self.journal.staging)
        for folder in {(self.journal.site / name).parent for name, _ in names}:
            sync_folder(folder)
        return result

    def _keep(self, path: Path, sha256: str) -> str:
        """Store a whole file for `restore`; returns the name it has there."""
        removed = f"{sha256[:24]}-{'0' * 24}"
        staged = self.journal.staging / removed
        write_whole(path, staged, sha256)
        give_to(staged, path.lstat())
        staged.replace(self.journal.removed / removed)
        return removed

    def without_gpu(self, plan: EnvironmentPlan, options: Cut) -> None:
        """Write stand-ins for libraries that leave, and METADATA that no longer requires them."""
        said: dict[str, dict[str, Any]] = {
            stand_in.path: {"stand_in": stand_in_json(stand_in)} for stand_in in plan.stand_ins
        }
        files = [stand_in.file for stand_in in plan.stand_ins]
        for file in plan.without.new_metadata(plan.tree):
            said[file.path] = {"requirements": dict(plan.without.requirements[file.owner])}
            files.append(file)
        changes = []
        for file in files:
            path, before, removed = plan.site / file.path, None, ""
            if path.exists():
                before = FileState(hash_file(path), path.stat().st_size)
                removed = self._keep(path, before.sha256) if options.keep_removed else ""
            owner = PurePosixPath(file.owner).name
            made: dict[str, Any] = {"library": None, **said[file.path]}
            changes.append(Change(file.path, (owner,), before, file.state, removed, self.document, **made))
        if changes:
            sync_folder(self.journal.removed)
            self.journal.add(*changes)
        for file in files:
            path = plan.site / file.path
            self.known.pop(file.path, None)
            status = (path if path.exists() else plan.site / file.owner).stat()
            mode = status.st_mode & 0o777 if path.exists() else _LIBRARY_MODE
            write_atomically(path, file.read(), mode=mode, owner=status, durable=True)
            self.known[file.path] = file.state

    def leave_out(self, plan: EnvironmentPlan, options: Cut, progress: Progress) -> tuple[list[DroppedFile], list[str]]:
        """Leave out what the rules name; returns these files, and why others stay."""
        self._move(plan)
        stubs = stand_ins(plan.tree, plan.dropped)
        changes, notes = self._leaving(plan, stubs, options, progress)
        if changes:
            sync_folder(self.journal.removed)
            self.journal.add(*(change for change, _ in changes.values()))
        gone = []
        written: set[str] = set()
        whole: dict[str, list[str]] = {package.dist_info: [] for package in plan.without.packages}
        for name, (change, seen) in changes.items():
            if stamp_of(plan.site / name) != seen:  # what the journal says of it is forgotten at the end
                notes.append(f"{name} stays: it was replaced meanwhile; run the same command again.")
                continue
            self.known.pop(name, None)
            if (dist_info := name.partition("/")[0]) in whole:
                whole[dist_info].append(name)
                continue
            status = (plan.site / name).lstat()
            for new in (new for new in stubs.get(name, ()) if new.path not in written):
                place, mode = plan.site / new.path, change.mode if new.path == name else None
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, new.read(), mode=mode, owner=status, durable=True)
                written.add(new.path)
            if change.after is None:
                (plan.site / name).unlink()
            self.known[name] = change.state_after
            gone.append(name)
        gone += [name for dist_info, names in whole.items() for name in self._uninstall(dist_info, names)]
        for folder in {(plan.site / name).parent for name in gone}:
            with suppress(FileNotFoundError):
                sync_folder(folder)
        sync_folder(plan.site)
        return [plan.dropped[name] for name in gone], notes

    def _move(self, plan: EnvironmentPlan) -> None:
        """Put files that were never opened beside the packs, and links in their places."""
        said = self.document
        changes = [
            Change(one.path, (PurePosixPath(package.dist_info).name,), None, None, "", said, None, moved=one)
            for one, package in plan.moved.items()
        ]
        if changes:
            self.journal.add(*changes)
        for one in plan.moved:
            one.move(plan.site)
            self.known[one.path] = Gone.MOVED

    def add_indexes(self, made: Iterable[MadeIndex]) -> tuple[ModuleIndex, ...]:
        """Put indexes of modules in place, but where a package brought its own."""
        new = []
        for one in made:
            index = one.files[0]
            owner = next(iter(self.tree.owners.get(index.path, ())), None)
            if owner and index.path not in self.known:
                continue
            new.append(one.index)
            self._add(one.files, index=plain(one.index))
        return tuple(new)

    def add_caches(self, made: Iterable[MadeCaches]) -> tuple[BakedCaches, ...]:
        """Put compile caches in place, where they are not there yet."""
        new = [one for one in made if self.known.get(one.files[0].path) != one.files[0].state]
        for one in new:
            self._add(one.files, caches=plain(one.caches))
        return tuple(one.caches for one in new)

    def _add(self, files: Sequence[NewFile], **row: Any) -> None:
        """Put a file in place that has a row of its own, and others that come with it."""
        first, *others = files
        name, rows = PurePosixPath(first.owner).name, tuple(map(AddedFile.of, others))
        said: dict[str, Any] = {"library": None, "added": rows, **row}
        self.journal.add(Change(first.path, (name,), None, first.state, "", self.document, **said))
        status = (self.journal.site / first.owner).stat()
        for file in reversed(files):  # an index is the newest
            place = inside(self.journal.site, file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, file.read(), mode=0o644, owner=status, durable=True)
        self.known[first.path] = first.state

    def _uninstall(self, dist_info: str, names: Sequence[str]) -> Sequence[str]:
        """Remove a dist-info folder at once: without some of its files nobody knows what it is."""
        folder = self.journal.site / dist_info
        there = {path.relative_to(self.journal.site).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        if not names or there != set(names):
            return ()
        folder.rename(self.journal.staging / dist_info)
        self.known.update(dict.fromkeys(names, Gone.GONE))
        return names

    def _leaving(
        self, plan: EnvironmentPlan, stubs: Mapping[str, Sequence[NewFile]], options: Cut, progress: Progress
    ) -> tuple[dict[str, tuple[Change, tuple[int, ...]]], list[str]]:
        """What is recorded of files that are left out, with what tells whether somebody replaced one; and why others
        stay."""
        changes: dict[str, tuple[Change, tuple[int, ...]]] = {}
        notes: list[str] = []
        places: dict[Path, dict[str, int]] = {}
        for name, owners in sorted(((name, plan.found[name]) for name in plan.dropped), key=lambda one: bool(one[1])):
            path, file = plan.site / name, plan.dropped[name]  # first what is only known by files of its package
            seen, sha256 = stamp_of(path), hash_file(path)
            if other := _other_hash(name, owners, sha256):
                notes.append(f"{name} stays: its hash is not the one in the RECORD of {other}; reinstall that package.")
                continue
            beside, removed = stubs.get(name, ()), ""
            own = next((new for new in beside if new.path == name), None)
            if options.keep_removed:
                removed = self._keep(path, sha256)
            for owner in owners:
                if owner.dist_info not in places:
                    places[owner.dist_info] = {row.path: place for place, row in enumerate(owner.record)}
            change = Change(
                path=name,
                distributions=tuple(owner.dist_info.name for owner in owners),
                before=FileState(sha256, path.stat().st_size),
                after=own.state if own else None,
                removed=removed,
                options=self.document,
                library=None,
                dropped=plain(file),
                mode=path.stat().st_mode & 0o7777,
                record_rows={owner.dist_info.name: places[owner.dist_info][owner.files[name].path] for owner in owners},
                added=tuple(AddedFile.of(new) for new in beside if new is not own),
            )
            changes[name] = change, seen
            progress.advance(file.size)
        return changes, notes


def _other_hash(name: str, owners: Sequence[InstalledDistribution], sha256: str) -> str:
    """The package whose RECORD has another hash for a file; empty where none has."""
    for owner in owners:
        expected = owner.files[name].hash
        if expected and expected.algorithm == "sha256" and expected.digest.hex() != sha256:
            return owner.metadata.name
    return ""


def _replaced_meanwhile(job: PlaceJob) -> LibraryResult:
    reason = "it was replaced while it was being cut; run the same command again"
    return LibraryResult.not_read(LibraryStatus.SKIPPED, job.name, job.size, reason)


def _change(
    job: PlaceJob,
    name: str,
    owners: Sequence[InstalledDistribution],
    result: LibraryResult,
    options: CutDocument,
) -> Change:
    return Change(
        path=name,
        distributions=tuple(owner.dist_info.name for owner in owners),
        before=FileState(result.sha256_in, result.size_before),
        after=FileState(result.sha256_out, result.size_after),
        removed=removed_name(result) if job.removed else "",
        options=options,
        library=library_json(replace(result, path=name)),
        same_as=job.name if name != job.name else None,
    )


def link_again(file: Path, name: Path, staging: Path) -> None:
    """Make a second name of a file one of its new content; a symbolic link leads there already."""
    if name.is_symlink():
        return
    beside = staging / f"{name.name}.link"
    beside.unlink(missing_ok=True)
    beside.hardlink_to(file)
    beside.replace(name)
