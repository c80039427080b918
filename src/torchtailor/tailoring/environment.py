"""Tailors an environment in place: each library is replaced by one rename, files that rules leave out are deleted, and
the environment is usable throughout."""

from __future__ import annotations

import hashlib
import shlex
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtailor.artifact.artifact import ArtifactKind, open_artifact
from torchtailor.artifact.drops import DroppedFile, drop_rules
from torchtailor.artifact.installed import InstalledDistribution, installed_in, owners_by_file, unreadable_in
from torchtailor.artifact.libraries import is_placeholder, is_shared_name
from torchtailor.artifact.sites import active_environment, project_environment
from torchtailor.disk import copy_attributes, disk_errors, give_to, hash_file, sync_folder, write_atomically
from torchtailor.documents import plain
from torchtailor.errors import ImpossibleError, NoMatchError, TorchtailorError
from torchtailor.licences import needs_nvidia_option
from torchtailor.processes import run_all
from torchtailor.progress import Progress
from torchtailor.surgery.options import TailorOptions
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.delta import write_delta, write_whole
from torchtailor.tailoring.folder import nvidias_in, read_code_in
from torchtailor.tailoring.journal import STATE_FOLDER, AddedFile, Chains, Change, FileState, Gone, Journal, reconcile
from torchtailor.tailoring.left_out import read_chunks, stand_ins
from torchtailor.tailoring.libraries import cut_library, is_library
from torchtailor.tailoring.manifest import library_json
from torchtailor.tailoring.packs import (
    check_tools,
    folder_name,
    libraries_below,
    pack_folder,
    pack_place,
    put_hook,
)
from torchtailor.tailoring.result import TailorResult
from torchtailor.trust import inside, leads_inside
from torchtailor.workload.pack import PackPlace

_ALREADY_CUT = "it was already cut for this target"
_RESTORE = "`torchtailor restore`"


@dataclass(frozen=True)
class _PlaceJob:
    """One installed library: cut into `staged`; what is needed to restore it goes to `removed`."""

    name: str
    size: int
    path: Path
    owners: tuple[InstalledDistribution, ...]
    options: TailorOptions
    proprietary: bool
    staged: Path
    removed: Path | None
    seen: tuple[int, ...]  # what tells whether somebody replaced it
    second_names: tuple[tuple[str, tuple[InstalledDistribution, ...]], ...] = ()  # links to it, and whose they are
    pack: PackPlace | None = None  # as it will be in the environment

    def __getstate__(self) -> dict[str, Any]:
        """Workers do not need the owners' tables of files."""
        return {**self.__dict__, "owners": (), "second_names": ()}

    @property
    def is_unchanged(self) -> bool:
        """Whether the file still is the one that was found: an installer may replace it meanwhile."""
        try:
            return _seen(self.path) == self.seen
        except OSError:
            return False


def _seen(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def environment_sites(environment: Path | None) -> tuple[Path, ...]:
    """The site-packages folders of an environment; without one, of the active one, of the project's `.venv`, or of the
    one that torchtailor runs in."""
    environment = environment or active_environment() or project_environment(Path.cwd())
    if environment is None:
        paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib"))
        return tuple(Path(path) for path in paths)
    if not environment.exists():
        raise NoMatchError(f"{environment} does not exist.", "Give the environment's folder: --env .venv")
    found = open_artifact(environment).site_packages or (environment,)
    sites = tuple(site for site in found if _has_packages(site))
    if not sites:
        raise NoMatchError(
            f"{environment} holds no installed Python packages.", "Give the environment's folder: --env .venv"
        )
    return sites


def _has_packages(folder: Path) -> bool:
    return any(folder.glob("*.dist-info")) or (folder / STATE_FOLDER).is_dir()


def tailor_environment(site: Path, options: TailorOptions, progress: Progress | None = None) -> TailorResult:
    """Cut the libraries of all distributions of a site-packages folder in place."""
    stripped = _Stripped(everywhere=bool(options.strip))
    options = options.with_default_strip()
    progress = progress or Progress()
    if options.dry_run:
        plan = _Plan.of(site, options)
        jobs, skipped = _jobs(plan, site / STATE_FOLDER, options)
        progress.begin(str(site), sum(job.size for job in jobs))
        owners = {job.name: job.owners for job in jobs}
        done = []
        for job, result in run_all(_stage, jobs, processes=options.workers):
            done.append(result)
            stripped.note(owners[job.name], result)
            progress.advance(job.size)
        done = [one if stripped.wanted(owners[one.path], one) else one.with_symbols() for one in done]
        return _result(plan, [*done, *skipped], plan.dropped.values(), (), options)
    check_tools(options, libraries_below(site))
    unchanged = "What was replaced before is whole and recorded."
    with disk_errors(site, unchanged=unchanged), Journal.locked(site) as journal:
        chains = reconcile(journal)
        _check_earlier(site, chains, options)
        plan = _Plan.of(site, options)
        jobs, skipped = _jobs(plan, journal.folder, options)
        to_drop = sum(file.size for file in plan.dropped.values())
        progress.begin(str(site), sum(job.size for job in jobs) + to_drop)
        known = {path: chain[-1].state_after for path, chain in chains.items()}
        try:
            done = list(_cut_all(journal, chains, jobs, options, progress, known, stripped))
            outcome = _result(plan, [*done, *skipped], (), (), options)
            if not outcome.useless_for_target:
                dropped, notes = _drop_all(journal, plan, options, progress, known)
                outcome = _result(plan, [*done, *skipped], dropped, notes, options)
        except BaseException:
            with suppress(OSError, TorchtailorError):  # the first error is the one to report
                _settle(journal, known)
            raise
        _settle(journal, known)
        removed = sum(path.stat().st_size for path in journal.removed.glob("*")) if options.keep_removed else 0
    return replace(outcome, removed_size=removed)


def _settle(journal: Journal, known: Mapping[str, FileState | Gone]) -> None:
    if not reconcile(journal, known):
        journal.delete()


class _Stripped:
    """The rule for symbol tables: a package with GPU code for the target loses them too (also Triton, most of whose
    bytes they are, and whose GPU code is NVIDIA's); no other package is changed, unless --strip asked for that."""

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._with_code: set[str] = set()

    def note_earlier(self, chains: Chains) -> None:
        """What an earlier run cut, which may have been stopped before it came to the package's other libraries."""
        changes = (change for chain in chains.values() for change in chain)
        cut = (change for change in changes if (change.library or {}).get("status") == LibraryStatus.CUT.value)
        self._with_code.update(name for change in cut for name in change.distributions)

    def note(self, owners: Sequence[InstalledDistribution], result: LibraryResult) -> None:
        if result.has_gpu_code and result.status is not LibraryStatus.NOTHING_FOR_TARGET:
            self._with_code.update(owner.dist_info.name for owner in owners)

    def wanted(self, owners: Sequence[InstalledDistribution], result: LibraryResult) -> bool:
        """Whether this result may be put in place, by what is known so far."""
        alone = result.status is LibraryStatus.STRIPPED and not self._everywhere
        return not alone or any(owner.dist_info.name in self._with_code for owner in owners)


def _result(
    plan: _Plan,
    libraries: Sequence[LibraryResult],
    dropped: Iterable[DroppedFile],
    notes: Sequence[str],
    options: TailorOptions,
) -> TailorResult:
    ordered = tuple(sorted(libraries, key=lambda library: library.path))
    gone = tuple(dropped)
    before = sum(library.size_before for library in ordered) + sum(file.size for file in gone)
    after = sum(library.size_after for library in ordered)
    after += 0 if options.packs or options.no_pack else sum(library.pack_size for library in ordered)
    site = plan.site
    result = TailorResult(ArtifactKind.ENVIRONMENT, site, site, ordered, before, after, options.dry_run)
    notes = (*unreadable_in(site), *plan.notes, *notes)
    return replace(result, notes=notes, dropped_files=gone, kept_files=plan.kept)


def _check_earlier(site: Path, chains: Chains, options: TailorOptions) -> None:
    """What an earlier cut removed cannot be kept by this one."""
    wanted = {str(device) for device in options.targets.devices}
    for path, chain in chains.items():
        missing = wanted - set(chain[-1].gpus)
        if missing and _depends_on_targets(chain[-1]):
            had, lacks = ", ".join(chain[-1].gpus), ", ".join(sorted(missing))
            if chain[-1].dropped:
                raise ImpossibleError(
                    f"{path} was left out for {had}, and {lacks} may need it.",
                    f"Run `torchtailor restore --env {shlex.quote(str(site))}` first.",
                )
            raise ImpossibleError(
                f"{path} was cut for {had} and has no code for {lacks} any more.",
                f"Run `torchtailor restore --env {shlex.quote(str(site))}` first.",
            )
        if chain[-1].library and options.policy.keep_lto and chain[-1].options["policy"].get("lto") is False:
            raise ImpossibleError(
                f"{path} was cut with --no-lto and has no LTO-IR any more.",
                "Add --no-lto, or run `torchtailor restore` first.",
            )


def _depends_on_targets(change: Change) -> bool:
    rule = drop_rules().get(change.dropped["rule"]) if change.dropped else None
    return rule is None or rule.by_target


@dataclass(frozen=True)
class _Plan:
    """The files of an environment and whose they are, and those that rules leave out."""

    site: Path
    found: Mapping[str, tuple[InstalledDistribution, ...]]
    dropped: Mapping[str, DroppedFile]
    kept: tuple[DroppedFile, ...]  # of NVIDIA's packages, for want of --nvidia
    notes: tuple[str, ...]

    @classmethod
    def of(cls, site: Path, options: TailorOptions) -> _Plan:
        owners = owners_by_file(installed_in(site))
        found = {
            name: owners[name]
            for name in sorted(owners)
            if (site / name).is_file() and not (is_shared_name(name) and is_placeholder(site / name))
        }
        sizes = {name: (site / name).lstat().st_size for name in found}
        left_out = options.left_out(sizes, read_code_in(site, owners, options), nvidias_in(owners))
        dropped = left_out.files
        root = site.resolve()
        outside = [name for name in dropped if root not in (folder := (site / name).parent.resolve(), *folder.parents)]
        notes = tuple(f"{name} stays: it is outside of the environment, behind a symbolic link." for name in outside)
        kept = tuple(left_out.refused.values())
        return cls(site, found, {name: dropped[name] for name in dropped if name not in outside}, kept, notes)


def _jobs(plan: _Plan, state: Path, options: TailorOptions) -> tuple[list[_PlaceJob], list[LibraryResult]]:
    """The libraries to cut, and those that cannot be replaced."""
    site = plan.site
    root, device = site.resolve(), site.stat().st_dev
    jobs: list[_PlaceJob] = []
    skipped: list[LibraryResult] = []
    found = {name: owners for name, owners in plan.found.items() if name not in plan.dropped}
    links = _second_names(site, found)
    second_names = {name for names in links.values() for name in names}
    for name, owners in found.items():
        path = site / name
        if name in second_names or not is_library(path):
            continue
        size = path.stat().st_size
        folder = path.parent.resolve()
        if root not in (folder, *folder.parents):
            reason = "it is outside of the environment, behind a symbolic link"
            skipped.append(LibraryResult.not_read(LibraryStatus.SKIPPED, name, size, reason))
        elif folder.stat().st_dev != device:
            reason = "it is on another file system than site-packages"
            skipped.append(LibraryResult.not_read(LibraryStatus.SKIPPED, name, size, reason))
        else:
            proprietary = any(needs_nvidia_option(name, one.metadata) for one in owners)
            staged = state / "staging" / str(len(jobs)) / path.name
            removed = state / "removed" if options.keep_removed else None
            others = tuple((other, found[other]) for other in links.get(name, ()))
            seen = _seen(path)
            pack = pack_place(site, name, options, pack_folder(folder_name(owners[0].metadata.name)))
            jobs.append(_PlaceJob(name, size, path, owners, options, proprietary, staged, removed, seen, others, pack))
    return jobs, skipped


def _second_names(site: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """By its first name, the other names of a file: hard links, and symbolic ones that stay inside."""
    by_file: dict[tuple[int, int], list[str]] = {}
    for name in names:
        place = site / name
        if not place.is_symlink() or leads_inside(site, place):  # else it is in the cache of an installer
            status = place.stat()
            by_file.setdefault((status.st_dev, status.st_ino), []).append(name)
    several = (sorted(group, key=lambda name: (site / name).is_symlink()) for group in by_file.values() if group[1:])
    return {group[0]: group[1:] for group in several if not (site / group[0]).is_symlink()}


def _cut_all(
    journal: Journal,
    chains: Chains,
    jobs: Sequence[_PlaceJob],
    options: TailorOptions,
    progress: Progress,
    known: dict[str, FileState | Gone],
    stripped: _Stripped,
) -> Iterator[LibraryResult]:
    recorded = options.to_json()
    stripped.note_earlier(chains)
    to_do = []
    for job in jobs:
        if job.name in chains and _of_libraries(chains[job.name][-1].options) == _of_libraries(recorded):
            progress.advance(job.size)
            yield LibraryResult.not_read(LibraryStatus.UNCHANGED, job.name, job.size, _ALREADY_CUT)
        else:
            job.staged.parent.mkdir()
            to_do.append(job)
    by_name = {job.name: job for job in to_do}
    waiting: list[LibraryResult] = []
    for done, staged in run_all(_stage, to_do, processes=options.workers):
        progress.advance(done.size)
        waiting.append(staged)
        if staged.status is LibraryStatus.STRIPPED and not stripped.wanted(by_name[staged.path].owners, staged):
            continue  # until GPU code of its package is found, or there is none
        for one in _in_order(waiting):
            job = by_name[one.path]
            if not stripped.wanted(job.owners, one):
                continue
            waiting.remove(one)
            names = (one.path, *(name for name, _ in job.second_names))
            for name in names:
                known.pop(name, None)
            result = _put_in_place(journal, job, one, recorded)
            stripped.note(job.owners, result)
            if result.status.changed:
                known.update(dict.fromkeys(names, FileState(result.sha256_out, result.size_after)))
            yield result
    for one in waiting:
        by_name[one.path].staged.unlink(missing_ok=True)
        yield one.with_symbols()


def _of_libraries(options: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the bytes of a library."""
    policy = {key: value for key, value in options["policy"].items() if key != "drop"}
    return {**options, "policy": policy}


def _drop_all(
    journal: Journal, plan: _Plan, options: TailorOptions, progress: Progress, known: dict[str, FileState | Gone]
) -> tuple[list[DroppedFile], list[str]]:
    """Leave out what the rules name; returns these files, and why others stay."""
    changes: dict[str, tuple[Change, tuple[int, ...]]] = {}
    notes: list[str] = []
    stays = [name for name in plan.found if name not in plan.dropped]
    stubs = stand_ins(plan.dropped.values(), stays, lambda name: read_chunks(plan.site / name), lambda _: _RESTORE)
    places: dict[Path, dict[str, int]] = {}
    for name, file in plan.dropped.items():
        path, owners = plan.site / name, plan.found[name]
        seen, sha256 = _seen(path), hash_file(path)
        if other := _other_hash(name, owners, sha256):
            notes.append(f"{name} stays: its hash is not the one in the RECORD of {other}; reinstall that package.")
            continue
        removed = ""
        if options.keep_removed:
            removed = f"{sha256[:24]}-{'0' * 24}"
            staged = journal.staging / removed
            write_whole(path, staged, sha256)
            give_to(staged, path.lstat())
            staged.replace(journal.removed / removed)
        for owner in owners:
            if owner.dist_info not in places:
                places[owner.dist_info] = {row.path: place for place, row in enumerate(owner.record)}
        change = Change(
            path=name,
            distributions=tuple(owner.dist_info.name for owner in owners),
            before=FileState(sha256, path.stat().st_size),
            after=_stand_in_state(name, stubs.get(name)),
            removed=removed,
            options=options.to_json(),
            library=None,
            dropped=plain(file),
            mode=path.stat().st_mode & 0o7777,
            record_rows={owner.dist_info.name: places[owner.dist_info][owner.files[name].path] for owner in owners},
            added=_stub_rows(name, stubs.get(name)),
        )
        changes[name] = change, seen
        progress.advance(file.size)
    if changes:
        sync_folder(journal.removed)
        journal.add(*(change for change, _ in changes.values()))
    gone = []
    for name, (change, seen) in changes.items():
        if _seen(plan.site / name) != seen:  # what the journal says of it is forgotten at the end
            notes.append(f"{name} stays: it was replaced meanwhile; run the same command again.")
            continue
        known.pop(name, None)
        if stub := stubs.get(name):
            status = (plan.site / name).lstat()
            mode = change.mode if stub[0] == name else None
            write_atomically(plan.site / stub[0], stub[1], mode=mode, owner=status, durable=True)
        if change.after is None:
            (plan.site / name).unlink()
        known[name] = change.state_after
        gone.append(plan.dropped[name])
    for folder in {(plan.site / file.path).parent for file in gone}:
        sync_folder(folder)
    return gone, notes


def _stand_in_state(name: str, stub: tuple[str, bytes] | None) -> FileState | None:
    """What is in the place of a library that was left out."""
    return FileState(hashlib.sha256(stub[1]).hexdigest(), len(stub[1])) if stub and stub[0] == name else None


def _stub_rows(name: str, stub: tuple[str, bytes] | None) -> tuple[AddedFile, ...]:
    """What stands in for a module that was left out, beside it."""
    if stub is None or stub[0] == name:
        return ()
    return (AddedFile(stub[0], hashlib.sha256(stub[1]).hexdigest(), len(stub[1])),)


def _other_hash(name: str, owners: Sequence[InstalledDistribution], sha256: str) -> str:
    """The package whose RECORD has another hash for a file; empty where none has."""
    for owner in owners:
        expected = owner.files[name].hash
        if expected and expected.algorithm == "sha256" and expected.digest.hex() != sha256:
            return owner.metadata.name
    return ""


def _in_order(waiting: Sequence[LibraryResult]) -> list[LibraryResult]:
    """The newest first: it may be what the others wait for."""
    return [*waiting[-1:], *waiting[:-1]]


def _stage(job: _PlaceJob) -> LibraryResult:
    """In a worker: cut a library into the staging folder; the environment is not touched."""
    pack = job.pack
    if pack and pack.folder and job.options.packs is None:
        pack = replace(pack, folder=job.staged.parent / "pack")
    result = cut_library(
        job.name, job.path, job.staged, job.options, proprietary=job.proprietary, durable=True, pack=pack
    )
    if result.status.changed and job.removed and not job.options.dry_run:
        delta = job.staged.with_name("removed")
        write_delta(job.path, job.staged, delta, result.sha256_in)
        give_to(delta, job.path.lstat())
        delta.replace(job.removed / _removed_name(result))  # two packages may hold the same library
        sync_folder(job.removed)
    return result


def _removed_name(result: LibraryResult) -> str:
    return f"{result.sha256_in[:24]}-{result.sha256_out[:24]}"


def _put_in_place(journal: Journal, job: _PlaceJob, result: LibraryResult, options: Mapping[str, Any]) -> LibraryResult:
    if not result.status.changed:
        return result
    names = ((job.name, job.owners), *job.second_names)
    for name, owners in names:
        if other := _other_hash(name, owners, result.sha256_in):
            reason = f"its hash is not the one in the RECORD of {other}; reinstall that package"
            return LibraryResult.not_read(LibraryStatus.SKIPPED, job.name, job.size, reason)
    if not job.is_unchanged:
        return _replaced_meanwhile(job)
    give_to(job.staged, job.path.lstat())
    copy_attributes(job.path, job.staged)
    added = _staged_packs(job, result)
    rows = tuple(AddedFile(name, hash_file(file), file.stat().st_size) for name, file in added.items())
    for name, owners in names:
        journal.add(replace(_change(job, name, owners, result, options), added=rows))
    for name, file in added.items():
        place = inside(journal.site, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        give_to(file, job.path.lstat())
        file.replace(place)
        sync_folder(place.parent)
    if not job.is_unchanged:  # the journal took a while; what it says of this file is dropped at the end
        return _replaced_meanwhile(job)
    job.staged.replace(job.path)  # never written into: other names of the old file (uv's cache) keep their bytes
    for name, _ in job.second_names:
        link_again(job.path, journal.site / name, journal.staging)
    for folder in {(journal.site / name).parent for name, _ in names}:
        sync_folder(folder)
    return result


def _staged_packs(job: _PlaceJob, result: LibraryResult) -> dict[str, Path]:
    """The pack and the hook of a library, by the path they will have in the environment."""
    if not result.pack:
        return {}
    folder = pack_folder(folder_name(job.owners[0].metadata.name))
    hook = put_hook(job.staged.parent / "hook", job.staged)
    files = {f"{folder}/{hook.name}": hook}
    if job.options.packs is None and not job.options.no_pack:
        files[f"{folder}/{result.pack}"] = job.staged.parent / "pack" / result.pack
    return files


def _replaced_meanwhile(job: _PlaceJob) -> LibraryResult:
    reason = "it was replaced while it was being cut; run the same command again"
    return LibraryResult.not_read(LibraryStatus.SKIPPED, job.name, job.size, reason)


def _change(
    job: _PlaceJob,
    name: str,
    owners: Sequence[InstalledDistribution],
    result: LibraryResult,
    options: Mapping[str, Any],
) -> Change:
    return Change(
        path=name,
        distributions=tuple(owner.dist_info.name for owner in owners),
        before=FileState(result.sha256_in, result.size_before),
        after=FileState(result.sha256_out, result.size_after),
        removed=_removed_name(result) if job.removed else "",
        options=dict(options),
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
