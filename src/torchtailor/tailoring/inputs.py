"""Tailors whatever the user names: finds out what each path is, and where its output goes.

results = tailor(Path("torch-2.10.0-...whl"), gpus=["9.0"], output=Path("out"))
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchtailor.catalog import Capability
from torchtailor.catalog.gpus import codes_named
from torchtailor.core.documents import Seconds, document, plain
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.format import counted
from torchtailor.core.processes import run_all, tidying_up
from torchtailor.core.progress import Progress
from torchtailor.surgery.cut import Cut, HostPages
from torchtailor.surgery.cut_document import PolicyDocument, TargetDocument
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.choices import CHOICES, cut_for
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.environment_plan import environment_sites
from torchtailor.tailoring.folder import tailor_file, tailor_folder
from torchtailor.tailoring.libraries import REFUSED
from torchtailor.tailoring.result import TailoredInput, TailorResult, not_cut
from torchtailor.tailoring.wheel import RELR_GLIBC, tailor_wheel
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, open_artifact

_IMMOVABLE = "all GPU code is needed, or the rest is in pieces smaller than a memory page"
_UNCHANGED = {
    LibraryStatus.NO_GPU_CODE: "no GPU code",
    LibraryStatus.NOTHING_FOR_TARGET: "nothing for the target, unchanged",
    LibraryStatus.NEEDS_NVIDIA_OPTION: REFUSED,
    LibraryStatus.STRIPPED: "only symbol tables removed",
    LibraryStatus.CUT: "as large as before",
}


@dataclass(frozen=True, slots=True)
class TailorTask:
    """One input and the place of its output."""

    kind: ArtifactKind
    source: Path
    output: Path


@dataclass(frozen=True, slots=True)
class _WheelJob:
    """One of several wheels that are cut at the same time."""

    task: TailorTask
    options: Cut
    size: int


@dataclass(frozen=True, slots=True)
class TailorFailure:
    """An input that could not be tailored, and why."""

    source: Path
    error: TorchtailorError


@dataclass(frozen=True, slots=True)
class TailorReport:
    """What tailoring all inputs gave."""

    options: Cut
    results: tuple[TailorResult, ...]
    failures: tuple[TailorFailure, ...]
    seconds: float

    @property
    def error(self) -> TorchtailorError | None:
        """What failed first; it is an error too where the GPU code of an input runs on none of the targets."""
        if self.failures:
            return self.failures[0].error
        useless = next((result for result in self.results if result.useless_for_target), None)
        if useless is None:
            return None
        if useless.foreign:
            platforms = " and ".join(useless.foreign)
            return ImpossibleError(*not_cut(useless.source.name, f"has GPU code for {platforms} only"))
        return ImpossibleError(
            f"{useless.source.name} has no GPU code that runs on {self.options.targets}; no output was written for it.",
            "`torchtailor inspect` lists its GPU code; another build of the package may have more.",
        )

    @property
    def why_nothing(self) -> str:
        """Why nothing was saved: what became of the libraries, by the reason."""
        libraries = [library for result in self.results for library in result.libraries]
        reasons = [_UNCHANGED.get(library.status) or library.reason or _IMMOVABLE for library in libraries]
        return f"Nothing is smaller: {_by_reason(reasons)}."

    @property
    def why_not_packed(self) -> str:
        """Why --relr had no effect, where it had none: by the reason."""
        libraries = [library for result in self.results for library in result.libraries]
        if not self.options.relr or any(library.relr for library in libraries):
            return ""
        if self.options.dry_run:
            return "What --relr would save is not known before it is done: a dry run does not count it."
        reasons = [
            library.not_packed or _UNCHANGED.get(library.status) or library.reason or "unchanged"
            for library in libraries
        ]
        return f"--relr packed nothing: {_by_reason(reasons)}."

    @property
    def why_not_paged(self) -> str:
        """Why --host-pages had no effect, where it was asked for and had none: by the reason."""
        libraries = [library for result in self.results for library in result.libraries]
        unasked = self.options.host_pages in (None, HostPages.KEEP)
        if unasked or not libraries or any(library.pages for library in libraries):
            return ""
        reasons = [library.not_paged or "not one page of it is in the trace" for library in libraries]
        return f"--host-pages moved nothing: {_by_reason(reasons)}."

    @property
    def why_no_ptx(self) -> str:
        """Where --keep-ptx found nothing to keep."""
        if not self.options.targets.keep_ptx:
            return ""
        without = [result for result in self.results if result.changed and not result.has_ptx]
        names = ", ".join(result.source.name for result in without)
        return f"There was no PTX to keep in the libraries of {names}." if without else ""

    @property
    def leaves_unloaded(self) -> bool:
        """Whether code for a target left libraries that keep other code for it: the driver loads the latter only."""
        own = {str(code) for arch in self.options.targets.archs for code in arch.codes}
        return any(own & {*one.kept} & {*one.dropped} for result in self.results for one in result.changed)

    def only_ptx(self, device: Capability) -> list[str]:
        """The libraries that have nothing but PTX for a target."""
        libraries = (library for result in self.results for library in result.libraries)
        return [library.path for library in libraries if str(device) in library.only_ptx]

    @property
    def document(self) -> TailorDocument:
        """What `tailor --json` prints."""
        return document(
            TailorDocument,
            self,
            dry_run=self.options.dry_run,
            seconds=round(self.seconds, 3),
            **plain(self.options.document),
            inputs=[result.document for result in self.results],
            failures=[
                FailedInput(failure.source, failure.error.message, failure.error.hint) for failure in self.failures
            ],
        )


def _by_reason(reasons: Sequence[str]) -> str:
    """How many libraries have each reason, the commonest first."""
    each = Counter(reasons).most_common()
    return (
        "; ".join(f"{counted(number, 'library', 'libraries')}: {why}" for why, number in each)
        or "there are no libraries"
    )


class FailedInput(Struct):
    """One path that could not be tailored."""

    source: Path
    error: str
    hint: str


class TailorDocument(Struct):
    """What was cut, path by path."""

    dry_run: bool
    seconds: Seconds
    target: TargetDocument
    policy: PolicyDocument
    inputs: tuple[TailoredInput, ...]
    failures: tuple[FailedInput, ...]


def tailor(
    *paths: Path | str,
    gpus: str | Sequence[str] = (),
    output: Path | str | None = None,
    env: Path | str | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> tuple[TailorResult, ...]:
    """Cut out the GPU code that the given GPUs cannot run, and raise a TorchtailorError where that is not possible.

    `paths` are libraries, wheels or folders, which are never changed: their outputs go to `output`. Without paths the
    environment `env`, or the active one, is cut in place. `gpus` are such as "9.0", "sm_90", "RTX 4090", "native".
    `choices` are those of `Cut`, such as nvidia=True; `keep_ptx`; and `workload`, traces of programs.
    """
    if unknown := sorted(set(choices) - set(CHOICES)):
        raise UsageError(f"A cut has no choice {unknown[0]!r}.", f"There are {', '.join(CHOICES)}.")
    options = cut_for(gpus, **choices)
    places = [Path(path) for path in paths]
    report = tailor_inputs(places, options, output=output or None, env=Path(env) if env else None, progress=progress)
    if report.error:
        raise report.error
    return report.results


def tailor_inputs(
    paths: Sequence[Path],
    options: Cut,
    *,
    output: Path | str | None = None,
    env: Path | None = None,
    progress: Progress | None = None,
) -> TailorReport:
    """Tailor wheels, folders and libraries, or an environment in place; a failed input does not stop the others, except
    where the cause would stop them too, such as a full disk."""
    in_place = env is not None or not paths
    if env is not None and paths:
        raise UsageError("--env cuts an environment in place; it takes no other PATH.", "Run the command twice.")
    if in_place and output is not None:
        raise UsageError("An environment is cut in place; -o does not go with it.", "Leave out -o, or name a PATH.")
    if options.keep_removed and not in_place:
        raise UsageError("--keep-removed is for environments: other inputs are never changed.", "Leave it out.")
    if options.split and in_place:
        raise UsageError(
            "--split makes new wheels or folders; an environment is not split in place.",
            "Name wheels or a folder, and -o.",
        )
    started = time.monotonic()
    if in_place:
        if options.relr:
            _check_glibc()
        sites = environment_sites(env)
        done: list[TailorResult | TailorFailure] = [tailor_environment(site, options, progress) for site in sites]
        cut = (
            library.has_gpu_code or library.reason or library.status.changed
            for each in done
            for library in _libraries(each)
        )
        if (
            not any(cut)
            and not options.targets.cpu
            and not any(each.dropped_files for each in done if isinstance(each, TailorResult))
        ):
            has_torch = any((site / "torch" / "version.py").is_file() for site in sites)
            raise NoMatchError(
                f"{', '.join(map(str, sites))} holds no library with GPU code.",
                "Its torch is for the CPU: `torchtailor help small` says what makes it smaller."
                if has_torch
                else "Name the environment that torch is installed in: --env .venv",
            )
    else:
        done = list(_tailor_paths(paths, output, options, progress))
    results = tuple(one for one in done if isinstance(one, TailorResult))
    failures = tuple(one for one in done if isinstance(one, TailorFailure))
    return TailorReport(options, results, failures, time.monotonic() - started)


def _libraries(done: TailorResult | TailorFailure) -> tuple[LibraryResult, ...]:
    return done.libraries if isinstance(done, TailorResult) else ()


def _tailor_paths(
    paths: Sequence[Path], output: Path | str | None, options: Cut, progress: Progress | None
) -> Iterator[TailorResult | TailorFailure]:
    tasks = plan_tasks(paths, output, dry_run=options.dry_run)
    place = Path(output) if output is not None and not Path(output).exists() else None
    try:
        yield from _tailor_tasks(tasks, options, progress)
    finally:
        if place is not None:
            with suppress(OSError):  # a folder that was made for nothing goes; one with something in it stays
                place.rmdir()


def _tailor_tasks(
    tasks: Sequence[TailorTask], options: Cut, progress: Progress | None
) -> Iterator[TailorResult | TailorFailure]:
    wheels = [task for task in tasks if task.kind is ArtifactKind.WHEEL]
    done: dict[TailorTask, TailorResult | TailorFailure] = {}
    if len(wheels) > 1 and options.workers > 1:
        done.update(_tailor_wheels(wheels, options, progress or Progress()))
    for task in tasks:
        yield done.get(task) or _tailor_one(task, options, progress)


def _tailor_wheels(
    tasks: Sequence[TailorTask], options: Cut, progress: Progress
) -> Iterator[tuple[TailorTask, TailorResult | TailorFailure]]:
    """Several wheels at the same time, each with its share of the cores: while one waits for the disk, or packs its
    last library, another goes on."""
    at_once = min(len(tasks), max(2, options.workers // 2))
    share = replace(options, processes=max(1, options.workers // at_once))
    jobs = [_WheelJob(task, share, task.source.stat().st_size) for task in dict.fromkeys(tasks)]
    work = run_all(_tailor_in_worker, jobs, processes=at_once)
    progress.begin(counted(len(jobs), "wheel"), sum(job.size for job in jobs))
    for job, result in work:
        progress.advance(job.size)
        yield job.task, result


def _tailor_in_worker(job: _WheelJob) -> TailorResult | TailorFailure:
    with tidying_up():
        return _tailor_one(job.task, job.options, None)


def _tailor_one(task: TailorTask, options: Cut, progress: Progress | None) -> TailorResult | TailorFailure:
    functions = {ArtifactKind.WHEEL: tailor_wheel, ArtifactKind.LIBRARY: tailor_file}
    try:
        if options.caches and task.kind in functions:
            raise UsageError(
                f"--bake-caches is for environments, folders of packages and images, and {task.source.name} is none.",
                "Use --env, or leave it out.",
            )
        artifact = open_artifact(task.source)
        if what := artifact.never_cut:
            return TailorFailure(task.source, ImpossibleError(*not_cut(task.source.name, f"is {what}")))
        if lost := _lost_before(artifact, options):
            return TailorFailure(task.source, lost)
        return _as_it_was(functions.get(task.kind, tailor_folder)(task.source, task.output, options, progress))
    except EnvironmentProblem:
        raise
    except TorchtailorError as error:
        return TailorFailure(task.source, error)


def _lost_before(artifact: Artifact, options: Cut) -> ImpossibleError | None:
    """The refusal of an input that an earlier cut, by its own manifest, left without code for a target that stock had;
    that another of its libraries still runs there does not help."""
    rows = (row for manifest in artifact.tailored.values() for row in manifest.get("libraries", ()))
    for row in rows:
        if row.get("moved"):
            continue  # to packs, where it still is
        kept, dropped = (codes_named(row.get(name, ())) for name in ("kept", "dropped"))
        for device in options.targets.devices:
            runs = [any(options.policy.fits(device, code) for code in codes) for codes in (kept, dropped)]
            if runs == [False, True]:
                left = ", ".join(map(str, kept)) or "nothing"
                return ImpossibleError(
                    f"{artifact.path.name} was cut before, and {row['path']} lost its code for {device} then: it has "
                    f"{left}.",
                    "Cut the stock one.",
                )
    return None


def _as_it_was(result: TailorResult) -> TailorResult:
    """Of a split that no target can use nothing was written, so nothing was cut."""
    if not (result.useless_for_target and result.changed):
        return result
    libraries = [
        replace(library.not_cut(LibraryStatus.NOTHING_FOR_TARGET), moved={}, moved_digest="", could_strip=0)
        if library.has_gpu_code
        else library.not_cut(LibraryStatus.NO_GPU_CODE)
        for library in result.libraries
    ]
    return replace(result, libraries=tuple(libraries), size_after=result.size_before)


def plan_tasks(paths: Sequence[Path], output: Path | str | None, *, dry_run: bool = False) -> list[TailorTask]:
    """What each path is and where its output goes, into a folder if that ends with `/`; nothing is read or written
    yet."""
    each: dict[tuple[Path, str], tuple[Path, ArtifactKind]] = {}  # what is given twice is cut once
    for source, kind in (one for path in paths for one in _expand(open_artifact(path))):
        each.setdefault((source.resolve(), source.name), (source, kind))
    found = list(each.values())
    several = len(found) > 1
    into_folder = isinstance(output, str) and output.endswith(os.sep)
    place = Path(output) if output is not None else None
    if place is not None and place.exists() and not place.is_dir():
        if several:
            raise UsageError(f"{place} is a file, but there are {len(found)} inputs.", "Give a folder with -o.")
        if into_folder:
            raise UsageError(f"{place} is a file, not a folder.", "Choose another -o.")
        if found and found[0][1] is ArtifactKind.WHEEL and place.suffix != ".whl":
            raise UsageError(f"{place} is a file.", "For wheels, -o must be a folder.")
    if place is None and dry_run:  # nothing is written: any free name will do
        place = Path(tempfile.gettempdir(), f"torchtailor-dry-run-{os.getpid()}")
    tasks = [
        TailorTask(kind, source, _output(source, kind, place, several=several, into_folder=into_folder))
        for source, kind in found
    ]
    if not tasks:
        raise NoMatchError(
            "There is nothing to cut.", "Name libraries, wheels or folders; or an environment with --env."
        )
    return tasks


def _expand(artifact: Artifact) -> list[tuple[Path, ArtifactKind]]:
    """A wheelhouse means its wheels."""
    if artifact.kind is ArtifactKind.WHEELHOUSE:
        return [(wheel, ArtifactKind.WHEEL) for wheel in artifact.wheels]
    return [(artifact.path, artifact.kind)]


def _check_glibc() -> None:
    """Packed relocations are refused where the loader cannot read them."""
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < RELR_GLIBC:
        here = f"glibc {version}" if name == "glibc" else "no glibc"
        raise ImpossibleError(
            f"--relr needs glibc 2.36 or newer, and this machine has {here}.", "Leave out --relr: all else works."
        )


def _output(source: Path, kind: ArtifactKind, output: Path | None, *, several: bool, into_folder: bool) -> Path:
    if kind is ArtifactKind.WHEEL:
        return output or Path.cwd()  # a new wheel has a new name
    if output is None:
        raise UsageError(f"No output was given for {source.name}.", "Add -o OUT; inputs are never changed.")
    if several:
        return output / source.resolve().name
    # Of one folder, the output is the folder that is named.
    return output / source.name if into_folder and kind is ArtifactKind.LIBRARY else output
