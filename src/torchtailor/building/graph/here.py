"""The engine of this process: jobs run one after another on this machine, or a few at a time; no cluster is needed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torchtailor.building.graph.drive import JobNews, WorkerNews, drive
from torchtailor.building.graph.events import EventKind, JobOutcome
from torchtailor.building.graph.graph import GraphJob, JobGraph, JobWeight
from torchtailor.building.graph.policy import THIS_PROCESS, FarmWorker

T = TypeVar("T")
_ANY = 1 << 30  # jobs that may wait here for their turn
_DONE = JobOutcome(done=True)
Run = Callable[[Sequence[GraphJob]], JobOutcome | None]


class Here:
    """Runs jobs one after another; what `run` raises ends the run of the graph.

    `run` gets one job, or all of the kind `together` that are ready, such as downloads; it may say what came of them.
    """

    patience: float = 5.0
    dashboard = warning = ""
    facts: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, run: Run, *, together: str = "", slots: int = 1) -> None:
        self._run, self._together = run, together
        slots = _ANY if together else slots
        self._worker = FarmWorker(THIS_PROCESS, slots=slots, here=True, machine=platform.machine())
        self._news: list[WorkerNews | JobNews] = [WorkerNews(self._worker, EventKind.WORKER_JOINED)]
        self._began = time.monotonic()
        self._started: dict[str, GraphJob] = {}
        self.known: tuple[FarmWorker, ...] = ()

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        self._started[job.name] = job

    def drop(self, name: str) -> None:
        pass

    def end_worker(self, worker: FarmWorker) -> None:
        pass

    def wait(self, timeout: float) -> list[WorkerNews | JobNews]:
        news = self._take_news()
        if not news and self._started:
            first = next(iter(self._started.values()))
            others = [job for job in self._started.values() if job.kind == self._together]
            jobs = others if first in others else [first]
            for job in jobs:
                del self._started[job.name]
            outcome = self._run(jobs) or _DONE
            news += [JobNews(job.name, outcome) for job in jobs]
        return news

    def _take_news(self) -> list[WorkerNews | JobNews]:
        news, self._news, self.known = self._news, [], (self._worker,)
        return news

    @property
    def time(self) -> float:
        return time.monotonic() - self._began


class _Threads(Here):
    """Runs a few jobs at a time."""

    def __init__(self, run: Run, pool: ThreadPoolExecutor, slots: int) -> None:
        super().__init__(run, slots=slots)
        self._pool = pool
        self._futures: dict[Future[JobOutcome | None], str] = {}

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        self._futures[self._pool.submit(self._run, [job])] = job.name

    def wait(self, timeout: float) -> list[WorkerNews | JobNews]:
        news = self._take_news()
        if not news:
            ended = wait(self._futures, timeout, FIRST_COMPLETED).done
            news += [JobNews(self._futures.pop(future), future.result() or _DONE) for future in ended]
        return news


def run_here(graph: JobGraph, run: Run, *, together: str = "", at_a_time: int = 1) -> None:
    """Run the jobs of a graph in this process; the first error ends it."""
    if at_a_time == 1:
        drive(graph, Here(run, together=together), frozenset())
        return
    with ThreadPoolExecutor(at_a_time) as pool:
        drive(graph, _Threads(run, pool, at_a_time), frozenset())


@dataclass(frozen=True)
class _Piece(Generic[T]):
    """A job that is no value: it can only be done here."""

    number: int
    work: Callable[[], T]
    needs: tuple[str, ...] = ()

    @property
    def gives(self) -> tuple[str, ...]:
        return (str(self.number),)


def run_each(works: Iterable[Callable[[], T]], *, at_a_time: int = 1) -> tuple[T, ...]:
    """What pieces of work give that do not wait for each other, in the order in which they were given."""
    pieces = [_Piece(number, work) for number, work in enumerate(works)]
    given: dict[str, T] = {}

    def run(jobs: Sequence[GraphJob]) -> None:
        for job in jobs:
            given[job.name] = pieces[int(job.name)].work()

    run_here(JobGraph(GraphJob(piece, piece.gives[0], JobWeight(1.0)) for piece in pieces), run, at_a_time=at_a_time)
    return tuple(given[str(piece.number)] for piece in pieces)
