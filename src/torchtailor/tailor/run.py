"""Tailors whatever the user names: finds out what each path is, and where its output belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.artifact.artifact import Artifact, ArtifactKind, open_artifact
from torchtailor.errors import EnvironmentProblem, ImpossibleError, NoMatchError, TorchtailorError, UsageError
from torchtailor.progress import Progress
from torchtailor.tailor.environment import environment_sites, tailor_environment
from torchtailor.tailor.folder import tailor_file, tailor_folder
from torchtailor.tailor.outcome import Outcome
from torchtailor.tailor.settings import Settings
from torchtailor.tailor.wheel import tailor_wheel


@dataclass(frozen=True, slots=True)
class Task:
    """One input and the place of its output."""

    kind: ArtifactKind
    source: Path
    output: Path


@dataclass(frozen=True, slots=True)
class Failure:
    """An input of which there is no output, and why."""

    source: Path
    error: TorchtailorError


def tailor_paths(
    paths: Sequence[Path], output: Path | None, settings: Settings, progress: Progress | None = None
) -> Iterator[Outcome | Failure]:
    """Tailor wheels, folders and libraries, one after the other; where one fails the others are still done, unless it
    was for something that stops them too, such as a full disk."""
    functions = {ArtifactKind.WHEEL: tailor_wheel, ArtifactKind.LIBRARY: tailor_file}
    for task in plan_tasks(paths, output):
        try:
            yield functions.get(task.kind, tailor_folder)(task.source, task.output, settings, progress)
        except EnvironmentProblem:
            raise
        except TorchtailorError as error:
            yield Failure(task.source, error)


def tailor_in_place(
    environment: Path | None, settings: Settings, progress: Progress | None = None
) -> Iterator[Outcome]:
    """Tailor an environment, or the active one, where it is."""
    for site in environment_sites(environment):
        yield tailor_environment(site, settings, progress)


def check_all(outcomes: Sequence[Outcome], failures: Sequence[Failure], settings: Settings) -> None:
    """Raise what went wrong first; it is an error too where the GPU code of an input runs on none of the targets."""
    for failure in failures:
        raise failure.error
    for outcome in outcomes:
        if outcome.useless_for_target:
            raise ImpossibleError(
                f"{outcome.source.name} has no GPU code that runs on {settings.targets}; no output was written for it.",
                "`torchtailor inspect` lists what it has; another build of the package may have more.",
            )


def plan_tasks(paths: Sequence[Path], output: Path | None) -> list[Task]:
    """What each path is and where its output goes; nothing is read or written yet."""
    found = [(source, kind) for path in paths for source, kind in _expand(open_artifact(path))]
    several = len(found) > 1
    if several and output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file, but there are {len(found)} inputs.", "Give a folder with -o.")
    tasks = [Task(kind, source, _output(source, kind, output, several=several)) for source, kind in found]
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


def _output(source: Path, kind: ArtifactKind, output: Path | None, *, several: bool) -> Path:
    if kind is ArtifactKind.WHEEL:
        return output or Path.cwd()  # a new wheel has a new name
    if output is None:
        raise UsageError(
            f"Where shall the new {source.name} go?", "Add -o OUT; what is named as input is never changed."
        )
    return output / source.resolve().name if several else output
