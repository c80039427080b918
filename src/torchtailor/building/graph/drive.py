"""Runs a graph on an engine: starts what is ready, repeats what was lost, and goes on without what cannot be made.

The same loop runs every engine. It keeps no state that a second run needs: what is finished is in the store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from torchtailor.building.graph.events import EventKind, FarmEvent, JobOutcome
from torchtailor.building.graph.graph import GraphJob, JobGraph
from torchtailor.building.graph.policy import FarmWorker, WorkerLoad, place
from torchtailor.core.errors import EnvironmentProblem, ExitCode
from torchtailor.core.format import counted, human_seconds

MOST_FAILURES = 2  # of one job, before it and all that needs it are given up
MOST_LOSSES = 4  # workers that die while they run one job and it gets no further, before that is the job's fault
_MOST_REMAKES = 3  # times that an input is made again for one job
_POLL = 0.5
_SAID_AFTER = 10.0  # seconds without workers until that is said, and then from time to time
_SAID_EVERY = 600.0
# What another try cannot change.
_FINAL = (ExitCode.IMPOSSIBLE, ExitCode.USAGE, ExitCode.NO_MATCH)


@dataclass(frozen=True)
class WorkerNews:
    """A worker has come or gone, or may not be used."""

    worker: FarmWorker
    kind: EventKind
    text: str = ""


@dataclass(frozen=True)
class JobNews:
    """A job has ended on a worker; without an outcome, the engine has lost it."""

    name: str
    outcome: JobOutcome | None


@dataclass(frozen=True)
class JobProgress:
    """A job that is running says how much of it is left."""

    name: str
    left: int


class Engine(Protocol):
    """Something that runs jobs."""

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        """Begin a job on a worker; its end is reported by `wait`."""

    def drop(self, name: str) -> None:
        """A job that was started is no longer waited for."""

    def end_worker(self, worker: FarmWorker) -> None:
        """A worker whose job does not end is to be started anew, where that is possible."""

    def wait(self, timeout: float) -> Sequence[WorkerNews | JobNews | JobProgress]:
        """What has happened since; waits for something to happen, but not longer than this."""

    @property
    def known(self) -> Sequence[FarmWorker]:
        """Workers that `wait` has reported and that have not gone since: those of an earlier run of the engine."""

    @property
    def time(self) -> float:
        """Seconds since the engine was started."""

    @property
    def patience(self) -> float:
        """Seconds for which to wait without a worker that may be used."""


@dataclass(frozen=True)
class JobFailure:
    """A job that was given up, and why."""

    job: GraphJob
    outcome: JobOutcome


@dataclass(frozen=True)
class DriveResult:
    """How a run of a graph ended."""

    done: Mapping[str, JobOutcome]  # jobs that ran, by name
    failed: Mapping[str, JobFailure]
    never: Mapping[str, str]  # jobs that could not start, each with the failed one that it waits for
    already: frozenset[str]  # jobs that did not have to run
    seconds: float

    @property
    def complete(self) -> bool:
        return not self.failed and not self.never


@dataclass
class _State:
    """Where a run stands."""

    loads: dict[str, WorkerLoad] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)  # the worker, by job
    done: dict[str, JobOutcome] = field(default_factory=dict)
    failed: dict[str, JobFailure] = field(default_factory=dict)
    never: dict[str, str] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    heard: dict[str, float] = field(default_factory=dict)  # when a job was started, or last said something
    left: dict[str, int] = field(default_factory=dict)  # the least that any try of a job had left
    remakes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by job and missing input
    avoided: set[tuple[str, str]] = field(default_factory=set)
    made: dict[str, set[str]] = field(default_factory=dict)  # outputs by the worker that made them


def drive(
    graph: JobGraph,
    engine: Engine,
    finished: frozenset[str],
    *,
    listen: Callable[[FarmEvent], None] = lambda _: None,
    remake: Callable[[str], None] = lambda _: None,
    lost: Callable[[Iterable[str]], AbstractSet[str]] = lambda _: frozenset(),
    made: Callable[[Iterable[str]], AbstractSet[str]] = frozenset,
    limit: Callable[[GraphJob], float] = lambda _: math.inf,
) -> DriveResult:
    """Run all jobs whose outputs are not `finished`.

    `remake` is told the key of an output that turned out missing, and `lost` says which of some others are missing too;
    `made` says which outputs of a job that was done are there. A job of which nothing was heard for `limit` seconds is
    taken for hung.
    """
    return _Driver(graph, engine, finished, listen, remake, lost, made, limit).run()


class _Driver:
    def __init__(
        self,
        graph: JobGraph,
        engine: Engine,
        finished: frozenset[str],
        listen: Callable[[FarmEvent], None],
        remake: Callable[[str], None],
        lost: Callable[[Iterable[str]], AbstractSet[str]],
        made: Callable[[Iterable[str]], AbstractSet[str]],
        limit: Callable[[GraphJob], float],
    ) -> None:
        self._graph, self._engine, self._listen, self._remake = graph, engine, listen, remake
        self._limit, self._lost_of, self._made_of = limit, lost, made
        self._finished = set(finished)
        self._to_do = set(graph.to_do(finished))
        self._state = _State()
        self._ready: set[str] = set()
        self._changed = True  # other than by a job that is done
        self._refused: dict[str, str] = {}
        self._silent: dict[str, str] = {}
        self._came = False  # whether any worker has
        self._idle_since: float | None = None
        self._said_idle = -math.inf
        for worker in engine.known:
            self._state.loads[worker.name] = WorkerLoad(worker)
            self._came = self._came or worker.helps

    def run(self) -> DriveResult:
        began = self._engine.time
        while self._open():
            self._start_ready()
            if not self._open():
                break
            self._check_workers()
            for news in self._engine.wait(_POLL):
                if isinstance(news, WorkerNews):
                    self._worker(news)
                elif isinstance(news, JobProgress):
                    self._progress(news)
                else:
                    self._job(news)
            self._check_hung()
        state = self._state
        already = frozenset(self._graph.jobs) - self._to_do
        return DriveResult(state.done, state.failed, state.never, already, self._engine.time - began)

    def _check_workers(self) -> None:
        """Stop where nobody is there to do the work, and nobody has come for long."""
        state, now = self._state, self._engine.time
        usable = [load.worker for name, load in state.loads.items() if name not in state.aside]
        stuck = [name for name in self._ready if not any(who.may_run(self._graph.jobs[name]) for who in usable)]
        if state.running or len(stuck) < len(self._ready) or not self._ready:
            self._idle_since, self._said_idle = None, -math.inf
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        idle, patience = now - self._idle_since, self._engine.patience
        if idle > patience:
            raise self._nobody(stuck[0], usable, idle)
        if idle >= _SAID_AFTER and now - self._said_idle >= _SAID_EVERY:
            self._said_idle = now
            text = "All workers are gone." if self._came else "No worker has come yet."
            self._say(EventKind.WAITING, "", "", text, seconds=patience - idle)

    def _nobody(self, stuck: str, usable: Sequence[FarmWorker], idle: float) -> EnvironmentProblem:
        """Why a run ends for want of workers."""
        reasons = " ".join(dict.fromkeys((self._refused or self._silent).values()))
        job = self._graph.jobs[stuck]
        needs = f" '{job.label}' needs one of {job.machine}." if job.machine and usable else ""
        if needs or reasons:
            message = f"No worker can be used:{needs} {reasons}".rstrip(": ")
        elif self._came:
            message = f"All workers are gone, and none has come for {human_seconds(idle)}."
        else:
            message = f"No worker has come in {human_seconds(idle)}."
        return EnvironmentProblem(
            message,
            "Start workers with this torchtailor; run the same command to resume. `wait_minutes` of [farm.NAME] "
            "says how long to wait (`torchtailor help farm`).",
        )

    def _check_hung(self) -> None:
        """A job that never ends, as in a file system that hangs, would hold its worker and all that waits for it."""
        state = self._state
        for name, worker in [*state.running.items()]:
            job = self._graph.jobs[name]
            silent = self._engine.time - state.heard[name]
            if silent <= self._limit(job):
                continue
            self._engine.drop(name)
            self._release(name)
            outcome = JobOutcome(
                done=False,
                worker=worker,
                error_class="JobHung",
                error=f"{worker} did not end it within {human_seconds(silent)}; it was expected to take "
                f"{human_seconds(job.weight.seconds)}.",
                hint="Look at that worker; `job_timeout` of [farm.NAME] says how long to wait.",
                code=ExitCode.ENVIRONMENT,
            )
            if self._others(name, worker):
                state.aside.add(worker)  # the job may still hold it
                self._say(EventKind.WORKER_SET_ASIDE, name, worker, outcome.error)
            self._count_failure(name, worker, outcome)
            if load := state.loads.get(worker):
                self._engine.end_worker(load.worker)

    # What is left

    def _open(self) -> bool:
        state = self._state
        return len(state.done) + len(state.failed) + len(state.never) < len(self._to_do)

    def _is_waiting(self, name: str) -> bool:
        state = self._state
        return (
            name in self._to_do
            and name not in state.done
            and name not in state.running
            and name not in state.failed
            and name not in state.never
        )

    def _is_ready(self, name: str) -> bool:
        return self._is_waiting(name) and self._finished.issuperset(self._graph.jobs[name].needs)

    def _start_ready(self) -> None:
        state, avoided = self._state, self._state.avoided
        if self._changed:
            self._find_never()  # what was running meanwhile may wait again
            self._ready = {name for name in self._to_do if self._is_ready(name)}
            self._changed = False
        loads = [load for name, load in state.loads.items() if name not in state.aside]
        for name, worker in place(
            self._graph, self._ready, loads, has=state.made, avoided=lambda job, who: (job, who) in avoided
        ):
            self._ready.discard(name)
            state.running[name] = worker
            state.heard[name] = self._engine.time
            self._say(EventKind.JOB_STARTED, name, worker)
            self._engine.start(self._graph.jobs[name], state.loads[worker].worker)

    # Workers

    def _worker(self, news: WorkerNews) -> None:
        name = news.worker.name
        if news.kind is EventKind.WORKER_JOINED:
            self._state.loads[name] = WorkerLoad(news.worker)
            self._came = self._came or news.worker.helps
        elif news.kind is EventKind.WORKER_LOST:
            self._state.loads.pop(name, None)
            self._state.made.pop(name, None)
        elif news.kind is EventKind.WORKER_REFUSED:
            self._refused[name] = news.text
        elif news.kind is EventKind.WORKER_SILENT:
            self._silent[name] = news.text
        self._say(news.kind, "", name, news.text)
        if news.kind is EventKind.WORKER_LOST:
            for job in [job for job, worker in self._state.running.items() if worker == name]:
                self._engine.drop(job)
                self._lost(job, name)

    def _progress(self, news: JobProgress) -> None:
        """Workers that are taken away again and again are not the fault of a job that goes on with each of them."""
        state = self._state
        state.heard[news.name] = self._engine.time
        if news.left < state.left.get(news.name, news.left + 1):
            state.left[news.name] = news.left
            state.losses.pop(news.name, None)

    def _lost(self, name: str, worker: str) -> None:
        """A job whose worker is gone runs again elsewhere; one that takes every worker with it is given up."""
        state = self._state
        self._release(name)
        state.losses[name] += 1
        if state.losses[name] < MOST_LOSSES:
            self._say(EventKind.JOB_AGAIN, name, worker, "its worker was lost")
            return
        self._give_up(
            name,
            JobOutcome(
                done=False,
                worker=worker,
                error_class="WorkerLost",
                error=f"Its worker died {state.losses[name]} times while it ran.",
                hint="Most likely memory ran out: give workers more, or fewer jobs at a time.",
                code=ExitCode.ENVIRONMENT,
                failure="out-of-memory",
            ),
        )

    def _release(self, name: str) -> str:
        self._changed = True
        worker = self._state.running.pop(name)
        if worker in self._state.loads:
            self._state.loads[worker].running.pop(name, None)
        return worker

    # Jobs

    def _job(self, news: JobNews) -> None:
        if news.name not in self._state.running:
            return  # it was dropped meanwhile
        if news.outcome is None:
            self._lost(news.name, self._state.running[news.name])
            return
        changed = self._changed
        worker = self._release(news.name)
        outcome = msgspec.structs.replace(self._believed(news.name, news.outcome), worker=worker)
        self._changed = changed or not outcome.done  # what is done changes only what waits for it
        if outcome.done:
            self._done(news.name, worker, outcome)
        elif outcome.missing:
            self._make_again(news.name, worker, outcome)
        else:
            self._failed(news.name, worker, outcome)

    def _believed(self, name: str, outcome: JobOutcome) -> JobOutcome:
        """What a worker says it has done must be there: one that writes elsewhere, or nothing, has not done it."""
        gives = self._graph.jobs[name].gives
        if not outcome.done or self._made_of(gives) >= {*gives}:
            return outcome
        return JobOutcome(
            done=False,
            seconds=outcome.seconds,
            error_class="NotDone",
            error="Its worker says that it is done, and the store has no such output.",
            hint="`torchtailor farm check` says what the workers are, and whether they see the store.",
            code=ExitCode.ENVIRONMENT,
        )

    def _done(self, name: str, worker: str, outcome: JobOutcome) -> None:
        state = self._state
        state.done[name] = outcome
        self._finished |= set(self._graph.jobs[name].gives)
        job = self._graph.jobs[name]
        state.made.setdefault(worker, set()).update((*job.gives, job.warm))
        self._ready |= {other for other in self._graph.after[name] if self._is_ready(other)}
        self._say(EventKind.JOB_DONE, name, worker, outcome=outcome)

    def _make_again(self, name: str, worker: str, outcome: JobOutcome) -> None:
        """An input is gone from the store, or was damaged: its job runs again, and then this one.

        What else of its inputs is gone is looked for at once: a job that has many would start for each of them.
        """
        state, makers = self._state, self._graph.makers
        state.remakes[name, outcome.missing] += 1
        if outcome.missing not in makers or state.remakes[name, outcome.missing] > _MOST_REMAKES:
            self._failed(name, worker, self._never_right(name, outcome))
            return
        others = self._lost_of(key for key in self._graph.jobs[name].needs if key in self._finished)
        for key in {outcome.missing, *others} & makers.keys():
            maker = makers[key]
            self._remake(key)
            if maker in state.done:  # rather by another worker than the one that has made this
                state.avoided.add((maker, state.done[maker].worker))
            self._finished -= set(self._graph.jobs[maker].gives)
            state.done.pop(maker, None)
            self._to_do.add(maker)
            # what the maker itself needs may never have been asked for in this run
            self._to_do |= self._graph.to_do(frozenset(self._finished)) & self._graph.ancestors(maker)
        self._say(EventKind.JOB_AGAIN, name, worker, "an input was missing in the store; it is made again")

    def _never_right(self, name: str, outcome: JobOutcome) -> JobOutcome:
        """The outcome of a job that gives up to wait for an input."""
        if (made := self._state.remakes[name, outcome.missing] - 1) < 1:
            return outcome
        maker = self._graph.jobs[self._graph.makers[outcome.missing]].label
        return msgspec.structs.replace(
            outcome,
            error=f"{outcome.error.rstrip('.')}, though '{maker}' was done again {counted(made, 'time')}.",
            hint="Look at the store and at the workers; `torchtailor farm check` says what they are.",
        )

    def _failed(self, name: str, worker: str, outcome: JobOutcome) -> None:
        state = self._state
        if outcome.code == ExitCode.ENVIRONMENT and self._others(name, worker):
            # a full disk or a missing tool: of that worker, as long as another one does not have it
            state.aside.add(worker)
            self._say(EventKind.WORKER_SET_ASIDE, name, worker, outcome.error)
            self._say(EventKind.JOB_AGAIN, name, worker, outcome.error)
            return
        self._count_failure(name, worker, outcome)

    def _others(self, name: str, worker: str) -> bool:
        """Whether another worker could run a job."""
        state, job = self._state, self._graph.jobs[name]
        return any(
            who not in state.aside and who != worker and load.worker.may_run(job) for who, load in state.loads.items()
        )

    def _count_failure(self, name: str, worker: str, outcome: JobOutcome) -> None:
        """Once more, elsewhere if possible; then it is given up."""
        state = self._state
        state.failures[name] += 1
        if state.failures[name] < MOST_FAILURES and outcome.code not in _FINAL:
            state.avoided.add((name, worker))
            self._say(EventKind.JOB_AGAIN, name, worker, outcome.error)
            return
        self._give_up(name, outcome)

    def _give_up(self, name: str, outcome: JobOutcome) -> None:
        state = self._state
        state.failed[name] = JobFailure(self._graph.jobs[name], outcome)
        self._find_never()
        self._say(EventKind.JOB_FAILED, name, outcome.worker, outcome.error, outcome)

    def _find_never(self) -> None:
        """What waits for an output that nobody will make cannot start; what runs, or has its inputs, goes on."""
        state, jobs = self._state, self._graph.jobs
        gone = [*state.failed, *state.never]
        while gone:
            name = gone.pop()
            lost = {*jobs[name].gives} - self._finished
            for other in self._graph.after[name]:
                if self._is_waiting(other) and not lost.isdisjoint(jobs[other].needs):
                    state.never[other] = state.never.get(name, name)
                    gone.append(other)

    def _say(
        self,
        kind: EventKind,
        name: str,
        worker: str,
        text: str = "",
        outcome: JobOutcome | None = None,
        *,
        seconds: float = 0.0,
    ) -> None:
        state = self._state
        ended = len(state.done) + len(state.failed) + len(state.never)
        standing = {
            "done": len(state.done),
            "running": len(state.running),
            "waiting": len(self._to_do) - ended - len(state.running),
            "failed": len(state.failed) + len(state.never),
        }
        self._listen(
            FarmEvent(
                kind,
                self._engine.time,
                worker=worker,
                job=self._graph.jobs[name].label if name else "",
                key=name,
                text=text,
                seconds=outcome.seconds if outcome else seconds,
                hits=outcome.hits if outcome else 0,
                misses=outcome.misses if outcome else 0,
                standing=standing,
            )
        )
