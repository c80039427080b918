"""Runs a graph in no time: the same driver and policy on workers that only count seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchtailor.building.graph.drive import JobNews, WorkerNews, drive
from torchtailor.building.graph.events import EventKind, JobOutcome
from torchtailor.building.graph.graph import GraphJob, JobGraph
from torchtailor.building.graph.policy import FarmWorker


@dataclass(frozen=True)
class Simulation:
    """How long a graph takes on so many workers."""

    workers: int
    seconds: float  # from the first job's start to the last one's end
    core_seconds: float  # of work

    @property
    def efficiency(self) -> float:
        """The share of the workers' time that is work."""
        return self.core_seconds / (self.workers * self.seconds) if self.seconds else 1.0


class SimulatedEngine:
    """Workers whose jobs take as long as they weigh."""

    patience: float = 10.0
    known: Sequence[FarmWorker] = ()

    def __init__(self, workers: list[FarmWorker], seconds: Callable[[GraphJob], float]) -> None:
        self._news: list[WorkerNews | JobNews] = [WorkerNews(worker, EventKind.WORKER_JOINED) for worker in workers]
        self._seconds = seconds
        self._running: list[tuple[float, int, str, float]] = []
        self._count = 0
        self._warm: dict[str, set[str]] = {}
        self.time = 0.0
        self.worked = 0.0
        self._line = 0.0  # when the line to the index is free

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        seconds = self._seconds(job)
        if job.warm and job.warm not in self._warm.setdefault(worker.name, set()):
            self._warm[worker.name].add(job.warm)
            seconds += job.warming
        self._count += 1
        self.worked += seconds
        if line := job.weight.line:
            self._line = max(self._line, self.time) + line
            seconds = max(seconds, self._line - self.time + seconds - line)
        heapq.heappush(self._running, (self.time + seconds, self._count, job.name, seconds))

    def drop(self, name: str) -> None:
        pass

    def end_worker(self, worker: FarmWorker) -> None:
        pass

    def wait(self, timeout: float) -> list[WorkerNews | JobNews]:
        news, self._news = self._news, []
        if not news and not self._running:
            self.time += timeout
        elif not news:
            self.time, _, name, seconds = heapq.heappop(self._running)
            news.append(JobNews(name, JobOutcome(done=True, seconds=seconds)))
        return news


def simulate(
    graph: JobGraph,
    workers: int,
    *,
    finished: frozenset[str] = frozenset(),
    memory: int = 1 << 62,
    machines: Sequence[str] = (),
    seconds: Callable[[GraphJob], float] = lambda job: job.weight.seconds,
) -> Simulation:
    """Run a graph on workers of one core each, all with this much memory; `machines` are their architectures, in turn,
    else any worker runs any job."""
    kinds = machines or ("",)
    some = [FarmWorker(f"worker {n}", memory=memory, here=True, machine=kinds[n % len(kinds)]) for n in range(workers)]
    engine = SimulatedEngine(some, seconds)
    done = drive(graph, engine, finished)
    return Simulation(workers, done.seconds, engine.worked)
