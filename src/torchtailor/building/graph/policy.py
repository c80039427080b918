"""Which job runs next, and where: the longest chain first, then the largest, on a worker with the memory for it.

Every engine asks the same functions, also the simulated one, so that a simulation is of this policy and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from torchtailor.building.graph.graph import GraphJob, JobGraph

THIS_PROCESS = "this process"  # the name of the worker that a run is itself


@dataclass(frozen=True)
class FarmWorker:
    """A worker: how many jobs it runs at a time, and in how much memory."""

    name: str
    slots: int = 1
    memory: int = 1 << 62
    here: bool = False  # it sees the files of the user
    helps: bool = True  # it also runs jobs that could run anywhere
    machine: str = ""  # its architecture; none: any

    def may_run(self, job: GraphJob) -> bool:
        if job.machine and self.machine and job.machine != self.machine:
            return False
        return self.here if job.here else self.helps


@dataclass
class WorkerLoad:
    """What a worker is doing."""

    worker: FarmWorker
    running: dict[str, int] = field(default_factory=dict)  # memory by job

    def takes(self, job: GraphJob) -> bool:
        """Whether a job fits now; one that is larger than the worker runs alone."""
        if len(self.running) >= self.worker.slots or not self.worker.may_run(job):
            return False
        return not self.running or sum(self.running.values()) + job.weight.memory <= self.worker.memory


def place(
    graph: JobGraph,
    ready: Iterable[str],
    loads: Sequence[WorkerLoad],
    *,
    has: Mapping[str, AbstractSet[str]] | None = None,
    avoided: Callable[[str, str], bool] = lambda _job, _worker: False,
) -> list[tuple[str, str]]:
    """Jobs to start now, each with its worker; the loads are updated.

    Of the workers that can take a job, one that has made most of its inputs, or has a tree configured for it, is
    chosen, then the one with the most free memory. A job is not given to a worker that it is to avoid while another
    could take it later.
    """
    made = has or {}
    started: list[tuple[str, str]] = []
    free = sum(load.worker.slots - len(load.running) for load in loads)
    for name in sorted(ready, key=graph.urgency.__getitem__) if free else ():
        if len(started) == free:
            break
        job = graph.jobs[name]
        able = [load for load in loads if load.worker.may_run(job)]
        allowed = [load for load in able if not avoided(name, load.worker.name)] or able
        fitting = [load for load in allowed if load.takes(job)]
        if not fitting:
            continue
        best = max(fitting, key=lambda load: _preference(load, job, made.get(load.worker.name, frozenset())))
        best.running[name] = job.weight.memory
        started.append((name, best.worker.name))
    return started


def _preference(load: WorkerLoad, job: GraphJob, made: AbstractSet[str]) -> tuple[int, int, int]:
    local = sum(key in made for key in job.needs) + 2 * (job.warm != "" and job.warm in made)
    free = load.worker.memory - sum(load.running.values())
    return local, free // 100_000_000, load.worker.slots - len(load.running)
