"""How long work reports its progress; what is drawn of it is the caller's business."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar, cast

JobT = TypeVar("JobT", bound="SizedJob")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RunningFile:
    """A file that is being compiled."""

    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CompileProgress:
    """How far a build from source is."""

    done: int
    total: int
    memory: int
    slowest: tuple[RunningFile, ...]
    remaining: float | None  # seconds

    @property
    def percent(self) -> float:
        return 100 * self.done / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class NixProgress:
    """The progress of a build with Nix."""

    builds_done: int
    builds_expected: int
    current: str
    phase: str
    step: int
    steps: int

    def __str__(self) -> str:
        words = [self.current or "evaluating"]
        if self.phase:
            words.append(self.phase)
        if self.steps:
            words.append(f"{self.step}/{self.steps}")
        if self.builds_expected > 1:
            words.append(f"(build {min(self.builds_done + 1, self.builds_expected)} of {self.builds_expected})")
        return " ".join(words)


class Progress:
    """Receives what work tells of itself, from several threads perhaps; a display draws what it is made for."""

    def stage(self, text: str) -> None:
        """Another part of the work begins."""

    def begin(self, what: str, total: int) -> None:
        """Work on so many bytes begins."""

    def advance(self, size: int) -> None:
        """So many of them are done."""

    def reading(self, library: str) -> None:
        """A library is read."""

    def expected(self, size: int) -> None:
        """So many bytes will be downloaded in all."""

    def started(self, filename: str, size: int | None, already: int) -> None:
        """A download begins; so much of it is here already."""

    def advanced(self, filename: str, size: int) -> None:
        """So many bytes of a download have come."""

    def restarted(self, filename: str) -> None:
        """A download begins anew."""

    def finished(self, filename: str) -> None:
        """A download is whole."""

    def compiling(self, progress: CompileProgress) -> None:
        """A build from source has advanced."""

    def nix_progress(self, progress: NixProgress) -> None:
        """A build with Nix has advanced."""


class SizedJob(Protocol):
    """A part of long work."""

    @property
    def size(self) -> int: ...


def followed(
    jobs: Sequence[JobT], work: Iterable[tuple[JobT, ResultT]], progress: Progress
) -> Iterator[tuple[JobT, ResultT]]:
    """The results of jobs as they come; meanwhile the progress knows how much is done, and the largest file of which
    there is no result yet: large ones are begun first."""
    waiting = {id(job): job for job in sorted(jobs, key=lambda job: job.size, reverse=True)}
    for job, result in chain([(None, None)], work):
        if job is not None:
            progress.advance(job.size)
            waiting.pop(id(job), None)
        if name := getattr(next(iter(waiting.values()), None), "name", ""):
            progress.reading(name.rpartition("/")[2])
        if job is not None:
            yield job, cast("ResultT", result)
