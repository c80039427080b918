"""The driver: order, memory, lost workers, failures, and what is reported of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.farm.graphs import NamedJob, graph, key
from torchtailor.building.graph.drive import MOST_LOSSES, DriveResult, JobNews, JobProgress, WorkerNews, drive
from torchtailor.building.graph.events import EventKind, FarmEvent, JobOutcome
from torchtailor.building.graph.graph import GraphJob, JobGraph
from torchtailor.building.graph.policy import FarmWorker
from torchtailor.building.graph.simulate import simulate
from torchtailor.core.documents import plain
from torchtailor.core.errors import EnvironmentProblem, ExitCode


class Scripted:
    """An engine whose jobs end as a test says, in random order; it checks what the driver asks of it."""

    known: tuple[FarmWorker, ...] = ()
    patience: float = 5.0

    def __init__(self, whole: JobGraph, workers: int, *, seed: int = 0, memory: int = 1 << 40, slots: int = 1) -> None:
        self.random = random.Random(seed)
        self.whole = whole
        self.workers = {f"w{n}": FarmWorker(f"w{n}", slots, memory, here=True) for n in range(workers)}
        self.news: list[WorkerNews | JobNews] = [self.joined(worker) for worker in self.workers.values()]
        self.running: dict[str, str] = {}
        self.made: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.bad: dict[str, list[JobOutcome | None]] = {}  # how a job ends, before it ends well
        self.left: dict[str, list[int]] = {}  # what a job says is left, each time before it ends
        self.order = ""  # labels of jobs of which the first ends before the others, where not at random
        self.hung: set[str] = set()  # workers whose jobs do not end
        self.ended: list[str] = []
        self.kill = 0  # workers that die
        self.next = workers
        self.time = 0.0

    def joined(self, worker: FarmWorker) -> WorkerNews:
        return WorkerNews(worker, EventKind.WORKER_JOINED)

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        assert worker.name in self.workers and job.name not in self.running
        assert self.made.issuperset(job.needs), "started before its inputs"
        mine = [name for name, who in self.running.items() if who == worker.name]
        assert len(mine) < worker.slots
        held = sum(self.whole.jobs[name].weight.memory for name in mine)
        assert not mine or held + job.weight.memory <= worker.memory
        self.running[job.name] = worker.name
        self.starts[job.label] += 1

    def drop(self, name: str) -> None:
        self.running.pop(name, None)

    def end_worker(self, worker: FarmWorker) -> None:
        self.ended.append(worker.name)

    def wait(self, timeout: float) -> list[WorkerNews | JobNews | JobProgress]:
        self.time += 1.0
        if self.news:
            news, self.news = self.news, []
            return [*news]
        if self.kill and self.running and self.random.random() < 0.5:
            self.kill -= 1
            name = self.running[self.random.choice(sorted(self.running))]
            lost = self.workers.pop(name)
            self.next += 1
            new = FarmWorker(f"w{self.next}", lost.slots, lost.memory, here=True)
            self.workers[new.name] = new
            return [WorkerNews(lost, EventKind.WORKER_LOST), self.joined(new)]
        able = sorted(name for name, worker in self.running.items() if worker not in self.hung)
        if not able:
            return []
        first = [key(label) for label in self.order if key(label) in able]
        name = first[0] if first else self.random.choice(able)
        del self.running[name]
        if endings := self.bad.get(self.whole.jobs[name].label):
            outcome = endings.pop(0)
            if outcome is not None and outcome.missing:
                self.made.discard(outcome.missing)
            said = self.left.get(self.whole.jobs[name].label)
            return [*([JobProgress(name, said.pop(0))] if said else []), JobNews(name, outcome)]
        self.made |= set(self.whole.jobs[name].gives)
        return [JobNews(name, JobOutcome(done=True))]


def run(engine: Scripted, events: list[FarmEvent] | None = None, done: frozenset[str] = frozenset()) -> DriveResult:
    engine.made |= done
    return drive(engine.whole, engine, done, listen=(events if events is not None else []).append)


def failing(code: int = ExitCode.BUILD_FAILED, text: str = "it is broken.") -> JobOutcome:
    return JobOutcome(done=False, error=text, code=code)


FORK = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ("c",)}


@settings(max_examples=examples(60))
@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_every_job_is_done_whatever_dies(seed: int, size: int, workers: int, slots: int, kills: int) -> None:
    rng = random.Random(seed)
    jobs = [
        NamedJob.make(
            str(n), [str(m) for m in range(n) if rng.random() < 0.2], rng.random() * 10, rng.choice((1, 3, 6, 20))
        )
        for n in range(size)
    ]
    engine = Scripted(JobGraph(jobs), workers, seed=seed, memory=10, slots=slots)
    engine.kill = kills
    engine.bad = {str(n): [failing()] for n in range(size) if rng.random() < 0.2}
    done = run(engine)
    assert done.complete and set(done.done) == set(engine.whole.jobs)


def test_a_job_that_fails_twice_takes_along_only_what_needs_it() -> None:
    engine = Scripted(graph(FORK), 2)
    engine.bad = {"b": [failing(), failing(text="worse.")]}
    events: list[FarmEvent] = []
    done = run(engine, events)
    assert {job.job.label for job in done.failed.values()} == {"b"}
    assert done.never == {key("d"): key("b")}
    assert set(done.done) == {key("a"), key("c"), key("e")}
    assert engine.starts["b"] == 2
    assert [event.text for event in events if event.kind is EventKind.JOB_FAILED] == ["worse."]
    assert events[-1].standing["done"] + events[-1].standing["failed"] == 5


def test_what_has_its_inputs_goes_on_without_the_job_that_makes_them() -> None:
    """Of two outputs of one job the store has one: what needs that one runs, whatever becomes of the other."""
    two = NamedJob.make("a", (), 1.0, 1)
    two.__dict__["gives"] = (key("a"), key("a2"))
    more = {"b": ("a",), "c": ("a2", "x"), "d": ("a2", "a"), "e": ("b",), "x": (), "y": ("x",), "z": ("y",)}
    whole = JobGraph([two, *(NamedJob.make(name, needs, 1.0, 1) for name, needs in more.items())])
    for order in ("abcexyz", "bacexyz", "axbceyz"):
        engine = Scripted(whole, 8)
        engine.order = order
        engine.bad = {"a": [failing(ExitCode.IMPOSSIBLE)]}
        events: list[FarmEvent] = []
        done = run(engine, events, frozenset({key("a2")}))
        assert done.never == {key("b"): key("a"), key("d"): key("a"), key("e"): key("a")}
        assert set(done.done) == set(map(key, "cxyz"))
        assert all(event.standing["waiting"] >= 0 for event in events)


@pytest.mark.parametrize("last", ["done", "lost", "missing"])
def test_what_runs_while_its_input_is_made_again_in_vain(last: str) -> None:
    """`x` has begun with the `a` of the store, which `y` did not find, and which then cannot be made."""
    missing = JobOutcome(done=False, missing=key("a"), error="gone", code=ExitCode.ENVIRONMENT)
    engine = Scripted(graph({"a": (), "x": ("a",), "y": ("a",), "z": (), "w": ("z",)}), 3)
    engine.order = "yaxzw"
    endings: dict[str, list[JobOutcome | None]] = {"done": [], "lost": [None], "missing": [missing]}
    engine.bad = {"y": [missing], "a": [failing(ExitCode.IMPOSSIBLE)], "x": endings[last]}
    done = run(engine, done=frozenset({key("a")}))
    assert set(done.failed) == {key("a")}
    assert set(done.done) == set(map(key, "xzw" if last == "done" else "zw"))
    assert set(done.never) == set(map(key, "y" if last == "done" else "xy"))


def test_what_another_try_cannot_change_is_tried_once() -> None:
    engine = Scripted(graph(FORK), 1)
    engine.bad = {"b": [failing(ExitCode.IMPOSSIBLE)] * 2}
    assert len(run(engine).failed) == 1
    assert engine.starts["b"] == 1


def test_a_full_disk_sets_one_worker_aside_and_the_job_runs_elsewhere() -> None:
    engine = Scripted(graph(FORK), 2)
    engine.bad = {"a": [failing(ExitCode.ENVIRONMENT, "The disk is full.")]}
    events: list[FarmEvent] = []
    done = run(engine, events)
    assert done.complete
    (aside,) = [event.worker for event in events if event.kind is EventKind.WORKER_SET_ASIDE]
    later = [event.worker for event in events if event.kind is EventKind.JOB_STARTED][1:]
    assert aside not in later


def test_the_last_worker_is_not_set_aside_and_the_reason_is_said() -> None:
    engine = Scripted(graph(FORK), 2)
    engine.bad = {"a": [failing(ExitCode.ENVIRONMENT, "The disk is full.")] * 3}
    done = run(engine)
    (failed,) = done.failed.values()
    assert failed.outcome.error == "The disk is full."
    assert len(done.never) == 4


def test_a_job_that_kills_every_worker_is_given_up() -> None:
    engine = Scripted(graph(FORK), 1)
    engine.bad = {"c": [None] * 10}
    done = run(engine)
    (failed,) = done.failed.values()
    assert failed.job.label == "c" and engine.starts["c"] == MOST_LOSSES
    assert "died" in failed.outcome.error and "memory" in failed.outcome.hint
    assert set(done.done) == {key("a"), key("b")}


def test_a_job_that_goes_on_with_each_worker_is_not_blamed_for_their_loss() -> None:
    """Machines that are taken away every few minutes: each compiles some more files of the same job."""
    engine = Scripted(graph(FORK), 1)
    engine.bad = {"c": [None] * 20}
    engine.left = {"c": [*range(100, 80, -1)]}
    assert run(engine).complete
    assert engine.starts["c"] == 21


def test_a_job_that_dies_at_the_same_file_is_given_up() -> None:
    engine = Scripted(graph(FORK), 1)
    engine.bad = {"c": [None] * 20}
    engine.left = {"c": [100, 90, 90, 95, 90, 80]}
    done = run(engine)
    (failed,) = done.failed.values()
    assert failed.job.label == "c" and engine.starts["c"] == 1 + MOST_LOSSES


def test_a_lost_input_is_made_again_with_all_that_it_needs() -> None:
    """The store had `b`, so nobody made `a`; now `b` is gone."""
    engine = Scripted(graph(FORK), 1)
    lost = JobOutcome(done=False, missing=key("b"), error="gone", code=ExitCode.ENVIRONMENT)
    engine.bad = {"d": [lost]}
    done = run(engine, done=frozenset(map(key, "bce")))
    assert done.complete
    assert [label for label in "abcde" if engine.starts[label]] == ["a", "b", "d"]


def test_inputs_that_are_lost_with_it_are_made_again_at_once() -> None:
    engine = Scripted(graph(FORK), 1)
    missing = JobOutcome(done=False, missing=key("b"), error="gone", code=ExitCode.ENVIRONMENT)
    engine.bad = {"d": [missing]}
    forgotten: list[str] = []
    done = frozenset(map(key, "abce"))
    engine.made |= done
    drive(engine.whole, engine, done, lost=lambda keys: {*keys} & {key("c")}, remake=forgotten.append)
    assert sorted(forgotten) == sorted([key("b"), key("c")])
    assert engine.starts == Counter("bcdd")


def test_without_workers_it_stops_with_their_reasons() -> None:
    engine = Scripted(graph(FORK), 0)
    why = "node1 has no torchtailor."
    engine.news = [WorkerNews(FarmWorker("node1"), EventKind.WORKER_REFUSED, why)]
    with pytest.raises(EnvironmentProblem, match="node1 has no torchtailor"):
        run(engine)


class Leaving(Scripted):
    """Workers that come and go at given times: a name with a plus or a minus."""

    def __init__(self, times: dict[float, str], patience: float) -> None:
        super().__init__(graph(FORK), 0)
        self.times, self.patience, self.seen = dict(times), patience, list[tuple[float, str]]()

    def wait(self, timeout: float) -> list[WorkerNews | JobNews | JobProgress]:
        news = super().wait(timeout)
        for moment in [moment for moment in self.times if moment <= self.time]:
            said = self.times.pop(moment)
            worker = FarmWorker(said[1:], here=True)
            if said[0] == "+":
                self.workers[worker.name] = worker
                news.append(self.joined(worker))
            else:
                del self.workers[worker.name]
                news.append(WorkerNews(worker, EventKind.WORKER_LOST))
        return news


def waits(events: list[FarmEvent]) -> list[tuple[float, float, str]]:
    return [(event.time, event.seconds, event.text) for event in events if event.kind is EventKind.WAITING]


def test_a_queue_is_waited_for_and_that_is_said_from_time_to_time() -> None:
    events: list[FarmEvent] = []
    done = run(Leaving({1500.0: "+late"}, patience=3600.0), events)
    assert done.complete
    assert waits(events) == [(at, 3600.0 - at, "No worker has come yet.") for at in (10.0, 610.0, 1210.0)]
    assert plain(events[0])["kind"] == "waiting-for-workers"


def test_without_any_worker_a_run_ends_and_says_how_to_go_on() -> None:
    events: list[FarmEvent] = []
    with pytest.raises(EnvironmentProblem) as stopped:
        run(Leaving({}, patience=1200.0), events)
    assert stopped.value.message == "No worker has come in 20 min 1 s."
    assert "run the same command to resume" in stopped.value.hint and "wait_minutes" in stopped.value.hint
    assert len(waits(events)) == 2


def test_when_all_workers_are_gone_the_run_ends_and_no_sooner() -> None:
    events: list[FarmEvent] = []
    with pytest.raises(EnvironmentProblem, match="All workers are gone, and none has come for 10 min 1 s"):
        run(Leaving({1.0: "+a", 3.0: "-a", 500.0: "+b", 502.0: "-b"}, patience=600.0), events)
    assert [text for _, _, text in waits(events)] == ["All workers are gone."] * 2


def test_the_longest_chain_starts_first() -> None:
    chain = {"long1": (), "long2": ("long1",), "long3": ("long2",), **{f"short{n}": () for n in range(4)}}
    engine = Scripted(graph(chain), 1)
    events: list[FarmEvent] = []
    run(engine, events)
    started = [event.job for event in events if event.kind is EventKind.JOB_STARTED]
    assert started[:2] == ["long1", "long2"]


def test_only_what_is_missing_for_the_results_runs() -> None:
    whole = graph(FORK)
    assert whole.to_do(frozenset(map(key, "de"))) == frozenset()
    assert whole.to_do(frozenset(map(key, "bce"))) == {key("d")}
    assert whole.to_do(frozenset()) == {key(name) for name in FORK}


def test_the_simulation_is_exact_where_it_can_be_counted() -> None:
    wide = graph({str(n): () for n in range(12)}, seconds=2.0)
    for workers, expected in ((1, 24.0), (4, 6.0), (5, 6.0), (12, 2.0), (100, 2.0)):
        one = simulate(wide, workers)
        assert one.seconds == expected
        assert one.efficiency == pytest.approx(24.0 / (workers * expected))
    chain = graph({"a": (), "b": ("a",), "c": ("b",)})
    assert simulate(chain, 8).seconds == 3.0
    assert simulate(chain, 8, finished=frozenset({key("a"), key("b")})).seconds == 1.0


def test_memory_limits_what_runs_at_the_same_time() -> None:
    engine = Scripted(graph({str(n): () for n in range(9)}, memory=5), 1, memory=10, slots=8)
    events: list[FarmEvent] = []
    run(engine, events)
    assert max(event.standing["running"] for event in events) == 2


def test_a_job_that_hangs_is_taken_away_and_runs_elsewhere() -> None:
    whole = graph({"a": [], "b": [], "c": ["a", "b"]})
    engine = Scripted(whole, 2)
    engine.hung = {"w0"}
    events: list[FarmEvent] = []
    done = drive(whole, engine, frozenset(), listen=events.append, limit=lambda _: 20.0)
    assert done.complete and engine.ended == ["w0"]
    (aside,) = [event for event in events if event.kind is EventKind.WORKER_SET_ASIDE]
    assert aside.worker == "w0" and "did not end it within 21 s" in aside.text and "expected to take" in aside.text


def test_jobs_that_hang_everywhere_are_given_up_with_words() -> None:
    whole = graph({"a": [], "b": ["a"]})
    engine = Scripted(whole, 1)
    engine.hung = {"w0"}
    done = drive(whole, engine, frozenset(), limit=lambda _: 20.0)
    (failure,) = done.failed.values()
    assert failure.outcome.code == ExitCode.ENVIRONMENT and "job_timeout" in failure.outcome.hint
    assert list(done.never) == [key("b")] and engine.starts["a"] == 2


def test_a_job_that_hangs_on_every_worker_ends_the_run() -> None:
    """Also where there is always another worker, as with nannies that start new ones."""
    whole = graph({"a": [], "b": []})
    engine = Scripted(whole, 5)
    engine.hung = {f"w{n}" for n in range(100)}
    done = drive(whole, engine, frozenset(), limit=lambda _: 5.0)
    assert {failure.job.label for failure in done.failed.values()} == {"a", "b"}
    assert engine.starts == {"a": 2, "b": 2}
