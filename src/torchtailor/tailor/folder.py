"""Tailors a folder into a new folder, or a single library into a new file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.artifact.installed import Installed, find_installed
from torchtailor.disk import copy_file, disk_errors, existing_parent, remove_abandoned, staging_folder, write_atomically
from torchtailor.errors import BadInputError, NoMatchError, UsageError
from torchtailor.licences import needs_nvidia_option
from torchtailor.progress import NoProgress, Progress
from torchtailor.tailor.manifest import library_json, manifest
from torchtailor.tailor.outcome import COPIED, Fate, LibraryOutcome, Outcome
from torchtailor.tailor.settings import Settings
from torchtailor.tailor.work import LibraryWork, is_library, run_all
from torchtailor.wheels.distribution import MANIFEST
from torchtailor.wheels.record import FileHash, RecordRow


@dataclass(frozen=True)
class _FileJob:
    """One library of a folder: cut, or copied where there is nothing to cut."""

    name: str
    size: int
    source: Path
    target: Path
    work: LibraryWork


def tailor_folder(folder: Path, output: Path, settings: Settings, progress: Progress | None = None) -> Outcome:
    """Copy a folder with its libraries cut; it appears under its name when all of it is there."""
    progress = progress or NoProgress()
    _check_places(folder, output)
    with disk_errors(output.parent):
        if not settings.dry_run:
            output.parent.mkdir(parents=True, exist_ok=True)
        installed = find_installed(folder)
        with staging_folder(existing_parent(output.parent)) as scratch:
            tree = _Tree(folder, scratch / "tree", copying=not settings.dry_run)
            jobs = _jobs(folder, scratch / "tree", tree.libraries, installed, settings)
            results = run_all(_cut_or_copy, jobs, processes=settings.processes)
            progress.begin(folder.name, sum(job.size for job in jobs))
            tree.copy_others()
            outcomes = {}
            for job, outcome in results:
                outcomes[job.name] = outcome
                progress.advance(job.size)
            libraries = tuple(outcomes[name] for name in sorted(outcomes))
            before = tree.size_of_others + sum(library.size_before for library in libraries)
            after = tree.size_of_others + sum(library.size_after for library in libraries)
            looked_at = Outcome("folder", folder, None, libraries, before, after, settings.dry_run)
            if settings.dry_run or looked_at.useless_for_target:
                return looked_at
            tree.link_second_names()
            _update_records(folder, scratch / "tree", installed, outcomes)
            names = {"kind": "folder", "name": folder.resolve().name}
            document = manifest(settings.choices(usually_strip=False), names, {}, map(library_json, libraries))
            (scratch / "tree" / MANIFEST).write_bytes(document)
            tree.set_modes()
            if output.is_dir():  # empty, as was checked
                output.rmdir()
            (scratch / "tree").rename(output)
    return Outcome("folder", folder, output, libraries, before, after)


def tailor_file(library: Path, output: Path, settings: Settings, progress: Progress | None = None) -> Outcome:
    """Cut one library into a new file, with its manifest beside it; here a damaged library is an error."""
    progress = progress or NoProgress()
    target = output / library.name if output.is_dir() else output
    if target.exists() and target.samefile(library):
        raise UsageError("Input and output are the same file.", "Choose another -o; the input is never changed.")
    consent_missing = not settings.nvidia and needs_nvidia_option(library.name, None)
    place = None if settings.dry_run or consent_missing else target
    with disk_errors(target.parent):
        progress.begin(library.name, library.stat().st_size)
        if not settings.dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(target.parent)
        work = LibraryWork(settings.policy, settings.strips(usually=False), settings.recompress, durable=True)
        result = work.cut_strictly(library, place)
        outcome = LibraryOutcome.of(library.name, result, consent_missing=consent_missing)
        progress.advance(result.size_before)
        sizes = (outcome.size_before, outcome.size_after)
        if settings.dry_run or outcome.fate is Fate.NOTHING_FOR_TARGET:
            return Outcome("library", library, None, (outcome,), *sizes, settings.dry_run)
        if not outcome.fate.changed:
            copy_file(library, target)
            return Outcome("library", library, target, (outcome,), *sizes, notes=(COPIED,))
        names = {"kind": "library", "name": library.name, "sha256": result.sha256_in, "size": result.size_before}
        output_names = {"name": target.name, "sha256": result.sha256_out, "size": result.size_after}
        document = manifest(settings.choices(usually_strip=False), names, output_names, [library_json(outcome)])
        write_atomically(target.with_name(f"{target.name}.{MANIFEST}"), document, durable=True)
    digests = (result.sha256_in, result.sha256_out)
    return Outcome("library", library, target, (outcome,), *sizes, False, *digests)


def _check_places(folder: Path, output: Path) -> None:
    if not folder.is_dir():
        raise NoMatchError(f"{folder} is not a folder.", "Check the path.")
    source, target = folder.resolve(), output.resolve()
    if target == source or source in target.parents:
        raise UsageError(f"{output} lies inside the folder that is to be copied.", "Choose another -o.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists already.", "Remove it or choose another -o.")


class _Tree:
    """The copy of a folder in the making: its folders are made at once, its libraries by others."""

    def __init__(self, source: Path, target: Path, *, copying: bool) -> None:
        self._source = source
        self._target = target
        self._copying = copying
        self._others: list[Path] = []
        self._modes: list[tuple[Path, int]] = []
        self._second_names: list[tuple[Path, Path]] = []
        self._first_names: dict[tuple[int, int], Path] = {}
        self.size_of_others = 0
        self.libraries: list[Path] = []
        for place, names, files in os.walk(source):
            names.sort()
            here = Path(place)
            if copying:
                self._place(here).mkdir(parents=True)
                self._modes.append((self._place(here), here.stat().st_mode))
            for name in sorted([*files, *(name for name in names if (here / name).is_symlink())]):
                self._sort(here / name)

    def _place(self, path: Path) -> Path:
        return self._target / path.relative_to(self._source)

    def _sort(self, path: Path) -> None:
        if path.is_symlink():
            self._others.append(path)
            return
        status = path.stat()
        if not path.is_file():
            raise BadInputError(f"{path} is neither a file nor a folder", "Take it out of the folder.")
        first = self._first_names.setdefault((status.st_dev, status.st_ino), path) if status.st_nlink > 1 else path
        if first is not path:
            self._second_names.append((first, path))
        elif is_library(path):
            self.libraries.append(path)
        else:
            self.size_of_others += status.st_size
            self._others.append(path)

    def copy_others(self) -> None:
        for path in self._others if self._copying else ():
            if path.is_symlink():
                self._place(path).symlink_to(path.readlink())
            else:
                copy_file(path, self._place(path))

    def link_second_names(self) -> None:
        """What was one file with two names is so again."""
        for first, second in self._second_names:
            self._place(second).hardlink_to(self._place(first))

    def set_modes(self) -> None:
        """Folders get their modes last: one may be read-only."""
        for folder, mode in reversed(self._modes):
            folder.chmod(mode & 0o7777)


def _jobs(
    folder: Path, target: Path, libraries: list[Path], installed: tuple[Installed, ...], settings: Settings
) -> list[_FileJob]:
    owners = {path: one for one in installed for path in one.files}
    strip = settings.strips(usually=False)
    jobs = []
    for path in libraries:
        name = path.relative_to(folder).as_posix()
        owner = owners.get(name)
        missing = not settings.nvidia and needs_nvidia_option(name, owner.metadata if owner else None)
        work = LibraryWork(settings.policy, strip, settings.recompress, missing, settings.dry_run)
        jobs.append(_FileJob(name, path.stat().st_size, path, target / name, work))
    return jobs


def _update_records(
    folder: Path, target: Path, installed: tuple[Installed, ...], outcomes: Mapping[str, LibraryOutcome]
) -> None:
    """A RECORD in the copy must say what is in the copy."""
    for one in installed:
        changes = {
            row.path: RecordRow(row.path, FileHash.from_hex(outcome.result.sha256_out), outcome.size_after)
            for path, row in one.files.items()
            if (outcome := outcomes.get(path)) and outcome.fate.changed and outcome.result
        }
        if changes:
            write_atomically(target / one.record_path.relative_to(folder), one.record.updated(changes).encode())


def _cut_or_copy(job: _FileJob) -> LibraryOutcome:
    outcome = job.work.cut(job.name, job.source, job.target)
    if not outcome.fate.changed and not job.work.look_only:
        copy_file(job.source, job.target)
    return outcome
