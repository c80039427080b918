"""Tailors an environment in place: each file is replaced whole, and the environment is usable at every moment."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtailor.artifact.inputs import site_packages
from torchtailor.artifact.installed import Installed, installed_in
from torchtailor.disk import disk_errors, sync_folder
from torchtailor.errors import ImpossibleError, NoMatchError
from torchtailor.licences import needs_nvidia_option
from torchtailor.progress import NoProgress, Progress
from torchtailor.tailor.delta import write_removed
from torchtailor.tailor.journal import FOLDER, Change, FileState, Journal
from torchtailor.tailor.manifest import library_json
from torchtailor.tailor.outcome import Fate, LibraryOutcome, Outcome
from torchtailor.tailor.reconcile import Chains, reconcile
from torchtailor.tailor.settings import Settings
from torchtailor.tailor.work import LibraryWork, is_library, run_all

_CUT_ALREADY = "was cut for this target already"


@dataclass(frozen=True)
class _PlaceJob:
    """One installed library: cut into `staged`; what is needed to restore it goes to `removed`."""

    name: str
    size: int
    path: Path
    owners: tuple[Installed, ...]
    work: LibraryWork
    staged: Path
    removed: Path | None

    def __getstate__(self) -> dict[str, Any]:
        """Workers need no table of files."""
        return {**self.__dict__, "owners": ()}


def find_sites(environment: Path | None) -> tuple[Path, ...]:
    """The site-packages folders of an environment; without one, of the active or else the running one."""
    if environment is None:
        active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
        if active:
            return find_sites(Path(active))
        paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib"))
        return tuple(Path(path) for path in paths)
    if not environment.is_dir():
        raise NoMatchError(f"{environment} is not a folder.", "Give the environment's folder: --env .venv")
    patterns = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages")
    found = site_packages(environment) or tuple(path for pattern in patterns for path in environment.glob(pattern))
    if not found and _has_packages(environment):
        found = (environment,)
    sites = {path.resolve(): path for path in sorted(found) if _has_packages(path)}
    if not sites:
        raise NoMatchError(
            f"{environment} holds no installed Python packages.", "Give the environment's folder: --env .venv"
        )
    return tuple(sites.values())


def _has_packages(folder: Path) -> bool:
    return any(folder.glob("*.dist-info")) or (folder / FOLDER).is_dir()


def tailor_environment(site: Path, settings: Settings, progress: Progress | None = None) -> Outcome:
    """Cut the libraries of all distributions of a site-packages folder, where they are."""
    progress = progress or NoProgress()
    if settings.dry_run:
        jobs, skipped = _jobs(site, site / FOLDER, settings)
        progress.begin(str(site), sum(job.size for job in jobs))
        outcomes = {}
        for job, outcome in run_all(_stage, jobs, processes=settings.processes):
            outcomes[job.name] = outcome
            progress.advance(job.size)
        return _outcome(site, [*outcomes.values(), *skipped], settings)
    unchanged = "What was replaced before is whole and recorded."
    with disk_errors(site, unchanged=unchanged), Journal.held(site) as journal:
        chains = reconcile(journal)
        _check_earlier(chains, settings)
        jobs, skipped = _jobs(site, journal.folder, settings)
        progress.begin(str(site), sum(job.size for job in jobs))
        known = {path: chain[-1].after for path, chain in chains.items()}
        try:
            done = list(_work(journal, chains, jobs, settings, progress, known))
        finally:
            with suppress(OSError):  # a full disk was said already; the next run sets it right
                if not reconcile(journal, known):
                    journal.forget()
    return _outcome(site, [*done, *skipped], settings)


def _outcome(site: Path, outcomes: Sequence[LibraryOutcome], settings: Settings) -> Outcome:
    libraries = tuple(sorted(outcomes, key=lambda outcome: outcome.path))
    before = sum(library.size_before for library in libraries)
    after = sum(library.size_after for library in libraries)
    return Outcome("environment", site, site, libraries, before, after, settings.dry_run)


def _check_earlier(chains: Chains, settings: Settings) -> None:
    """What an earlier cut took out cannot be kept by this one."""
    wanted = {str(device) for device in settings.targets.devices}
    for path, chain in chains.items():
        if missing := wanted - set(chain[-1].gpus):
            had, lacks = ", ".join(chain[-1].gpus), ", ".join(sorted(missing))
            raise ImpossibleError(
                f"{path} was cut for {had} and has nothing for {lacks} any more.",
                "Run `torchtailor restore` first.",
            )


def _jobs(site: Path, state: Path, settings: Settings) -> tuple[list[_PlaceJob], list[LibraryOutcome]]:
    """The libraries to cut, and those that cannot be replaced."""
    strip = settings.strips(usually=False)
    owners: dict[str, list[Installed]] = {}
    for one in installed_in(site):
        for name in one.files:
            owners.setdefault(name, []).append(one)
    root, device = site.resolve(), site.stat().st_dev
    jobs: list[_PlaceJob] = []
    skipped: list[LibraryOutcome] = []
    for name, holders in sorted(owners.items()):
        path = site / name
        if not path.is_file() or not is_library(path):
            continue
        size = path.stat().st_size
        folder = path.parent.resolve()
        if root not in (folder, *folder.parents):
            skipped.append(LibraryOutcome.skipped(name, size, "it lies outside of the environment, behind a link"))
        elif folder.stat().st_dev != device:
            skipped.append(LibraryOutcome.skipped(name, size, "it lies on another disk than site-packages"))
        else:
            missing = not settings.nvidia and any(needs_nvidia_option(name, one.metadata) for one in holders)
            work = LibraryWork(settings.policy, strip, settings.recompress, missing, settings.dry_run, durable=True)
            place = state / "staging" / str(len(jobs))
            removed = state / "removed" if settings.keep_removed else None
            jobs.append(_PlaceJob(name, size, path, tuple(holders), work, place / path.name, removed))
    return jobs, skipped


def _work(
    journal: Journal,
    chains: Chains,
    jobs: Sequence[_PlaceJob],
    settings: Settings,
    progress: Progress,
    known: dict[str, FileState],
) -> Iterator[LibraryOutcome]:
    choices = settings.choices(usually_strip=False).to_json()
    to_do = []
    for job in jobs:
        if job.name in chains and chains[job.name][-1].choices == choices:
            progress.advance(job.size)
            yield LibraryOutcome(job.name, Fate.UNCHANGED, job.size, None, _CUT_ALREADY)
        else:
            job.staged.parent.mkdir()
            to_do.append(job)
    by_name = {job.name: job for job in to_do}
    for done, outcome in run_all(_stage, to_do, processes=settings.processes):
        progress.advance(done.size)
        known.pop(done.name, None)
        placed = _put_in_place(journal, by_name[done.name], outcome, choices)
        if placed.fate.changed and placed.result:
            known[done.name] = FileState(placed.result.sha256_out, placed.result.size_after)
        yield placed


def _stage(job: _PlaceJob) -> LibraryOutcome:
    """In a worker: cut a library into the staging folder; the environment is not touched."""
    outcome = job.work.cut(job.name, job.path, job.staged)
    if outcome.fate.changed and outcome.result and job.removed and not job.work.look_only:
        kept = job.staged.with_name("removed")
        write_removed(job.path, job.staged, kept, outcome.result.sha256_in)
        kept.replace(job.removed / _removed_name(outcome))  # two packages may hold the same library
        sync_folder(job.removed)
    return outcome


def _removed_name(outcome: LibraryOutcome) -> str:
    assert outcome.result is not None
    return f"{outcome.result.sha256_in[:24]}-{outcome.result.sha256_out[:24]}"


def _put_in_place(
    journal: Journal, job: _PlaceJob, outcome: LibraryOutcome, choices: Mapping[str, Any]
) -> LibraryOutcome:
    result = outcome.result
    if not outcome.fate.changed or result is None:
        return outcome
    for owner in job.owners:
        expected = owner.files[job.name].hash
        if expected and expected.algorithm == "sha256" and expected.digest.hex() != result.sha256_in:
            reason = f"it is not what the RECORD of {owner.metadata.name} says; reinstall that package"
            return LibraryOutcome.skipped(job.name, job.size, reason)
    change = Change(
        path=job.name,
        distributions=tuple(owner.dist_info.name for owner in job.owners),
        before=FileState(result.sha256_in, result.size_before),
        after=FileState(result.sha256_out, result.size_after),
        removed=_removed_name(outcome) if job.removed else "",
        choices=dict(choices),
        library=library_json(outcome),
    )
    with suppress(PermissionError):  # only root can give files away; then root's copy stays the owner's
        status = job.path.lstat()
        os.chown(job.staged, status.st_uid, status.st_gid)
    journal.add(change)
    job.staged.replace(job.path)  # never written into: other names of the old file (uv's cache) keep their bytes
    sync_folder(job.path.parent)
    return outcome
