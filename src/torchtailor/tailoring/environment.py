"""Tailors an environment in place: each file is replaced by one rename, and the environment is usable throughout."""

from __future__ import annotations

import os
import shlex
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtailor.artifact.artifact import ArtifactKind, open_artifact
from torchtailor.artifact.installed import InstalledDistribution, installed_in, owners_by_file, unreadable_in
from torchtailor.artifact.sites import active_environment, project_environment
from torchtailor.disk import disk_errors, sync_folder
from torchtailor.errors import ImpossibleError, NoMatchError
from torchtailor.licences import needs_nvidia_option
from torchtailor.progress import NoProgress, Progress
from torchtailor.surgery.options import TailorOptions
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.delta import write_delta
from torchtailor.tailoring.journal import STATE_FOLDER, Chains, Change, FileState, Journal, reconcile
from torchtailor.tailoring.libraries import cut_library, is_library
from torchtailor.tailoring.manifest import library_json
from torchtailor.tailoring.processes import run_all
from torchtailor.tailoring.result import TailorResult

_ALREADY_CUT = "it was already cut for this target"


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

    def __getstate__(self) -> dict[str, Any]:
        """Workers do not need the owners' tables of files."""
        return {**self.__dict__, "owners": ()}


def environment_sites(environment: Path | None) -> tuple[Path, ...]:
    """The site-packages folders of an environment; without one, of the active one, of the project's `.venv`, or of the
    one that torchtailor runs in."""
    environment = environment or active_environment() or project_environment(Path.cwd())
    if environment is None:
        paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib"))
        return tuple(Path(path) for path in paths)
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
    options = options.with_default_strip(False)
    progress = progress or NoProgress()
    if options.dry_run:
        jobs, skipped = _jobs(site, site / STATE_FOLDER, options)
        progress.begin(str(site), sum(job.size for job in jobs))
        done = []
        for job, result in run_all(_stage, jobs, processes=options.workers):
            done.append(result)
            progress.advance(job.size)
        return _result(site, [*done, *skipped], options)
    unchanged = "What was replaced before is whole and recorded."
    with disk_errors(site, unchanged=unchanged), Journal.locked(site) as journal:
        chains = reconcile(journal)
        _check_earlier(site, chains, options)
        jobs, skipped = _jobs(site, journal.folder, options)
        progress.begin(str(site), sum(job.size for job in jobs))
        known = {path: chain[-1].after for path, chain in chains.items()}
        try:
            done = list(_cut_all(journal, chains, jobs, options, progress, known))
        finally:
            with suppress(OSError):  # a full disk was reported already; the next run completes it
                if not reconcile(journal, known):
                    journal.delete()
        removed = sum(path.stat().st_size for path in journal.removed.glob("*")) if options.keep_removed else 0
    return replace(_result(site, [*done, *skipped], options), removed_size=removed)


def _result(site: Path, libraries: Sequence[LibraryResult], options: TailorOptions) -> TailorResult:
    ordered = tuple(sorted(libraries, key=lambda library: library.path))
    before = sum(library.size_before for library in ordered)
    after = sum(library.size_after for library in ordered)
    notes = unreadable_in(site)
    return TailorResult(ArtifactKind.ENVIRONMENT, site, site, ordered, before, after, options.dry_run, notes=notes)


def _check_earlier(site: Path, chains: Chains, options: TailorOptions) -> None:
    """What an earlier cut removed cannot be kept by this one."""
    wanted = {str(device) for device in options.targets.devices}
    for path, chain in chains.items():
        if missing := wanted - set(chain[-1].gpus):
            had, lacks = ", ".join(chain[-1].gpus), ", ".join(sorted(missing))
            raise ImpossibleError(
                f"{path} was cut for {had} and has no code for {lacks} any more.",
                f"Run `torchtailor restore --env {shlex.quote(str(site))}` first.",
            )


def _jobs(site: Path, state: Path, options: TailorOptions) -> tuple[list[_PlaceJob], list[LibraryResult]]:
    """The libraries to cut, and those that cannot be replaced."""
    root, device = site.resolve(), site.stat().st_dev
    jobs: list[_PlaceJob] = []
    skipped: list[LibraryResult] = []
    for name, owners in sorted(owners_by_file(installed_in(site)).items()):
        path = site / name
        if not path.is_file() or not is_library(path):
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
            jobs.append(_PlaceJob(name, size, path, owners, options, proprietary, staged, removed))
    return jobs, skipped


def _cut_all(
    journal: Journal,
    chains: Chains,
    jobs: Sequence[_PlaceJob],
    options: TailorOptions,
    progress: Progress,
    known: dict[str, FileState],
) -> Iterator[LibraryResult]:
    recorded = options.to_json()
    to_do = []
    for job in jobs:
        if job.name in chains and chains[job.name][-1].options == recorded:
            progress.advance(job.size)
            yield LibraryResult.not_read(LibraryStatus.UNCHANGED, job.name, job.size, _ALREADY_CUT)
        else:
            job.staged.parent.mkdir()
            to_do.append(job)
    by_name = {job.name: job for job in to_do}
    for done, staged in run_all(_stage, to_do, processes=options.workers):
        progress.advance(done.size)
        known.pop(done.name, None)
        result = _put_in_place(journal, by_name[done.name], staged, recorded)
        if result.status.changed:
            known[done.name] = FileState(result.sha256_out, result.size_after)
        yield result


def _stage(job: _PlaceJob) -> LibraryResult:
    """In a worker: cut a library into the staging folder; the environment is not touched."""
    result = cut_library(job.name, job.path, job.staged, job.options, proprietary=job.proprietary, durable=True)
    if result.status.changed and job.removed and not job.options.dry_run:
        delta = job.staged.with_name("removed")
        write_delta(job.path, job.staged, delta, result.sha256_in)
        delta.replace(job.removed / _removed_name(result))  # two packages may hold the same library
        sync_folder(job.removed)
    return result


def _removed_name(result: LibraryResult) -> str:
    return f"{result.sha256_in[:24]}-{result.sha256_out[:24]}"


def _put_in_place(journal: Journal, job: _PlaceJob, result: LibraryResult, options: Mapping[str, Any]) -> LibraryResult:
    if not result.status.changed:
        return result
    for owner in job.owners:
        expected = owner.files[job.name].hash
        if expected and expected.algorithm == "sha256" and expected.digest.hex() != result.sha256_in:
            reason = f"its hash is not the one in the RECORD of {owner.metadata.name}; reinstall that package"
            return LibraryResult.not_read(LibraryStatus.SKIPPED, job.name, job.size, reason)
    change = Change(
        path=job.name,
        distributions=tuple(owner.dist_info.name for owner in job.owners),
        before=FileState(result.sha256_in, result.size_before),
        after=FileState(result.sha256_out, result.size_after),
        removed=_removed_name(result) if job.removed else "",
        options=dict(options),
        library=library_json(result),
    )
    with suppress(PermissionError):  # only root may change owners: a file of root's tailored by root keeps its owner
        status = job.path.lstat()
        os.chown(job.staged, status.st_uid, status.st_gid)
    journal.add(change)
    job.staged.replace(job.path)  # never written into: other names of the old file (uv's cache) keep their bytes
    sync_folder(job.path.parent)
    return result
