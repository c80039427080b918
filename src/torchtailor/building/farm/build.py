"""A build on many machines: the plan with its cost, the run, and wheelhouses in their place."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
from msgspec import Meta, Struct

from torchtailor.building.base import BuildPlan, UnavailableVariant, unavailable_rows
from torchtailor.building.farm.collect import check_collected
from torchtailor.building.farm.jobs import own_rows
from torchtailor.building.farm.perform import WorkerSetup, restore_folder, restore_packed, workbench
from torchtailor.building.farm.records import KEY_VARIABLE, find_secret, need_secret
from torchtailor.building.farm.store import FarmStore, MissingOutputError, open_farm_store
from torchtailor.building.farm.where import PlaceKind, Where, chosen_store, started
from torchtailor.building.graph.drive import DriveResult, JobFailure, drive
from torchtailor.building.graph.events import EventKind, FarmEvent, JobOutcome
from torchtailor.building.graph.graph import GraphCost, GraphJob, JobGraph
from torchtailor.building.graph.simulate import Simulation, simulate
from torchtailor.building.ledger.ledger import Ledger, LedgerJob, OpenAttempts, Result
from torchtailor.building.ledger.rates import known_rates
from torchtailor.building.nix.backend import output_lines
from torchtailor.building.nix.builder import NixOutput
from torchtailor.building.planned_jobs import FarmedPlan, FarmVariant, JobPlace, PlannedJobs
from torchtailor.building.shown import Line, index_lines, wheelhouse_lines
from torchtailor.building.wheel_jobs import PROVEN_LEVEL, CutForGpus, FetchWheel, JobContext, PackVariant, ProveVariant
from torchtailor.catalog import Catalog, load_catalog
from torchtailor.core.cgroups import available_cores
from torchtailor.core.disk import disk_errors, new_folder, state_folder, write_atomically
from torchtailor.core.documents import Bytes, Seconds, document
from torchtailor.core.errors import (
    BuildFailedError,
    CheckFailedError,
    EnvironmentProblem,
    ExitCode,
    TorchtailorError,
    UsageError,
)
from torchtailor.core.format import counted
from torchtailor.core.room import DiskNeed, check_room
from torchtailor.core.trust import is_file_name
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, WheelhouseDocument, check_place, read_wheelhouse

_SHOWN_WORKERS = (1, 8, 32, 128)
_ROUNDS = 3  # of a run whose store loses what it has
_LEAST_LIMIT = 3600.0  # seconds until a job is taken for hung
_WRONG_INPUT = (ExitCode.BAD_INPUT, ExitCode.CHECK_FAILED)  # of a job whose inputs may be no work of its makers
_TIMES_EXPECTED = 10  # or so many times what it was expected to take


@dataclass(frozen=True)
class FarmPlan:
    """The jobs of a build on a place, and what of them is in the store."""

    plan: BuildPlan
    jobs: PlannedJobs
    where: Where
    store: str
    shown_store: str
    finished: frozenset[str]
    prove: bool = False

    @property
    def graph(self) -> JobGraph:
        return self.jobs.graph

    @property
    def variants(self) -> tuple[FarmVariant, ...]:
        return self.jobs.variants

    @property
    def disk(self) -> tuple[DiskNeed, ...]:
        """What is written to each file system of this machine, as far as the method says it."""
        return self.jobs.disk(self.to_do.jobs)

    @property
    def processes(self) -> int:
        """Processes that one job may start: those of --jobs, of the place, or in this process what the machine has."""
        if self.jobs.processes:
            return self.jobs.processes
        return 0 if self.where.kind is PlaceKind.PROCESS else self.where.settings.processes

    @property
    def to_do(self) -> JobGraph:
        return self.graph.part(self.graph.to_do(self.finished))

    @property
    def proven(self) -> str | None:
        """The level of `verify` that every wheelhouse is proven at."""
        return PROVEN_LEVEL if self.prove else None

    @property
    def download(self) -> int | None:
        """Bytes of wheels to fetch, less where a worker's cache has some; None where sizes are not known."""
        return self.jobs.download(self.to_do.jobs)

    @property
    def cost(self) -> GraphCost:
        return self.to_do.cost

    def limit_of(self, job: GraphJob) -> float:
        """Seconds of silence after which a job is taken for hung."""
        given = self.where.settings.job_timeout
        return float(given) if given else max(_LEAST_LIMIT, _TIMES_EXPECTED * job.weight.seconds)

    def simulated(self) -> tuple[Simulation, ...]:
        """The expected time on some numbers of workers, by the policy that the run itself has."""
        return tuple(self.simulated_on(workers) for workers in sorted({self.where.workers, *_SHOWN_WORKERS}))

    def simulated_on(self, workers: int) -> Simulation:
        """The whole time of a run: workers are started and met, jobs run, wheelhouses are collected.

        More workers of this machine than it has cores do no more at a time.
        """
        own = self.where.kind is PlaceKind.LOCAL and workers == self.where.workers
        at_once = min(workers, available_cores()) if own else workers
        jobs = replace(simulate(self.jobs.graph_for(workers), at_once, finished=self.finished), workers=workers)
        start = self.where.kind.start_seconds(workers) if self.to_do.jobs else 0.0
        return replace(jobs, seconds=start + jobs.seconds + self.jobs.collect_seconds)

    def kinds(self) -> Mapping[str, tuple[int, int]]:
        """Jobs in all and jobs to run, by kind."""
        left = self.to_do.jobs
        found: dict[str, tuple[int, int]] = {}
        for name, job in self.graph.jobs.items():
            jobs, open_ = found.get(job.kind, (0, 0))
            found[job.kind] = (jobs + 1, open_ + (name in left))
        return found

    @property
    def document(self) -> FarmPlanDocument:
        cost = self.cost
        return FarmPlanDocument(
            on=self.where.name,
            store=self.shown_store,
            variants=[variant.name for variant in self.variants],
            unavailable=unavailable_rows(self.plan.unavailable),
            prove=self.proven,
            jobs=[
                FarmJobDocument(
                    key=job.name,
                    kind=job.kind,
                    label=job.label,
                    needs=sorted(self.graph.before[name]),
                    seconds=round(job.weight.seconds, 2),
                    memory=job.weight.memory,
                    in_store=self.finished.issuperset(job.gives),
                )
                for name, job in ((name, self.graph.jobs[name]) for name in self.graph.order)
            ],
            jobs_to_run=cost.jobs,
            download=self.download,
            core_hours=round(cost.core_seconds / 3600, 3),
            critical_path_seconds=round(cost.critical_seconds, 1),
            expected=[
                ExpectedTimeDocument(one.workers, round(one.seconds, 1), round(one.efficiency, 3))
                for one in self.simulated()
            ],
        )


class FarmJobDocument(Struct):
    """A job of a plan."""

    key: Annotated[str, Meta(description="of its first output in the store")]
    kind: str
    label: str
    needs: Annotated[list[str], Meta(description="keys of the jobs that it waits for")]
    seconds: Annotated[float, Meta(description="expected, on one core")]
    memory: Bytes
    in_store: bool


class ExpectedTimeDocument(Struct):
    """The time that a number of workers would take."""

    workers: int
    seconds: Seconds
    efficiency: Annotated[float, Meta(description="share of the workers' time that is work")]


class FarmPlanDocument(Struct):
    """The jobs of a build on a place, and what of them is in the store."""

    on: str
    store: str
    variants: list[str]
    unavailable: list[UnavailableVariant]
    prove: Annotated[str | None, Meta(description="the level at which --prove verifies each wheelhouse")]
    jobs: list[FarmJobDocument]
    jobs_to_run: int
    download: Annotated[int | None, Meta(description="bytes at most, by the sizes that indexes list; null: not known")]
    core_hours: float
    critical_path_seconds: Annotated[float, Meta(description="of the longest chain of jobs")]
    expected: list[ExpectedTimeDocument]


@dataclass(frozen=True)
class FarmBuildResult:
    """What a build on many machines gave."""

    wheelhouses: tuple[Wheelhouse, ...]
    failed: Mapping[str, JobFailure]  # by variant
    variants_index: Path | None
    outcomes: Mapping[str, tuple[str, JobOutcome]]  # the label and what came of each job that ran, by key
    already: int  # jobs whose output was in the store, or that nobody needed
    lost: int  # workers that went away
    refused: Mapping[str, str]  # workers that may not be used, and why
    seconds: float
    outputs: tuple[NixOutput, ...] = ()  # of a build with Nix, which has no wheelhouses
    proven: str | None = None  # the level that wheelhouses were proven at

    def lines(self) -> Iterator[Line]:
        yield from wheelhouse_lines(self.wheelhouses)
        yield from index_lines(self.variants_index, next(iter(self.wheelhouses), None))
        yield from output_lines(self.outputs)

    @property
    def downloaded(self) -> int:
        return sum(outcome.downloaded for _, outcome in self.outcomes.values())

    @property
    def failures(self) -> list[FarmFailureDocument]:
        return [
            document(FarmFailureDocument, failure.outcome, variant=variant, job=failure.job.label)
            for variant, failure in self.failed.items()
        ]

    @property
    def jobs(self) -> list[FarmOutcomeDocument]:
        return [
            document(FarmOutcomeDocument, outcome, key=key, label=label, seconds=round(outcome.seconds, 3))
            for key, (label, outcome) in self.outcomes.items()
        ]

    @property
    def workers_refused(self) -> list[RefusedWorkerDocument]:
        return [RefusedWorkerDocument(name, why) for name, why in self.refused.items()]


class FarmFailureDocument(Struct):
    """A variant that could not be built."""

    variant: str
    job: str
    error: str
    hint: str
    failure: Annotated[str, Meta(description="the id that `doctor` has for it")]


class FarmOutcomeDocument(Struct):
    """A job that ran."""

    key: str
    label: str
    worker: str
    seconds: Seconds
    done: bool
    hits: Annotated[int, Meta(description="files that a cache had")]
    misses: int


class RefusedWorkerDocument(Struct):
    """A worker that may not be used."""

    worker: str
    reason: str


class FarmBuildDocument(Struct):
    """While it runs, stderr has one JSON object a line for each event."""

    wheelhouses: tuple[WheelhouseDocument, ...]
    variants_index: Path | None
    outputs: Annotated[tuple[NixOutput, ...], Meta(description="of --via nix")]
    failures: list[FarmFailureDocument] = msgspec.field(name="failed")
    jobs: list[FarmOutcomeDocument]
    already: Annotated[int, Meta(description="jobs that did not have to run")] = msgspec.field(name="jobs_in_store")
    lost: int = msgspec.field(name="workers_lost")
    workers_refused: list[RefusedWorkerDocument]
    downloaded: Bytes
    proven: Annotated[str | None, Meta(description="the level at which --prove has verified the wheelhouses")]
    seconds: Seconds
    unavailable: list[UnavailableVariant]


def plan_farm(
    plan: BuildPlan,
    where: Where,
    *,
    catalog: Catalog | None = None,
    store: str | None = None,
    objects: str | None = None,
    prove: bool = False,
    shards: int | None = None,
    ledger: Ledger | None = None,
) -> FarmPlan:
    """The graph of a plan on a place; asks the store what it has, and changes nothing.

    `objects` is where compiled files are shared, a folder of the store's disk where none is given; `shards` is how many
    each part of a build from source is compiled in, else by weight.
    """
    if not isinstance(plan, FarmedPlan):
        raise UsageError("This method builds on one machine: its jobs are not known.", "Omit --on.")
    if prove and not where.kind.is_remote:
        import torchtailor.code.hostcode  # noqa: F401  # better said now than by the last job
    chosen = chosen_store(where, store)
    # without a key, no record is this user's; a plan makes none
    opened = open_farm_store(chosen, find_secret(chosen, where.settings.store_key) or secrets.token_hex())
    catalog = catalog or load_catalog()
    place = JobPlace(
        catalog,
        chosen,
        where.workers,
        here=not where.kind.is_remote,
        rates=known_rates(ledger or Ledger()),
        rows=own_rows(catalog),
        objects=objects or where.settings.objects,
        shards=shards,
        prove=prove,
    )
    jobs = plan.jobs_on(place)
    opened.demand(_listed(jobs.graph))
    finished = _finished(jobs.graph, opened)
    farm = FarmPlan(jobs.plan, jobs, where, chosen, opened.shown, finished, prove)
    return replace(farm, plan=jobs.costed(farm.simulated_on(where.workers).seconds, farm.disk))


def _listed(graph: JobGraph) -> dict[str, str]:
    """The SHA-256 that indexes gave, by the keys of fetched wheels."""
    jobs = [job.job for job in graph.jobs.values()]
    return {job.key: job.wheel.sha256 for job in jobs if isinstance(job, FetchWheel) and job.wheel.sha256}


def _finished(graph: JobGraph, store: FarmStore) -> frozenset[str]:
    """What of a graph the store has; a proof of a wheelhouse that it does not have is of no use."""
    there = store.finished(graph.makers)
    return frozenset(
        key
        for key in there
        if not isinstance(job := graph.jobs[graph.makers[key]].job, ProveVariant) or job.wheelhouse in there
    )


def run_farm(
    farm: FarmPlan,
    catalog: Catalog,
    *,
    ledger: Ledger | None = None,
    listen: Callable[[FarmEvent], None] = lambda _: None,
) -> FarmBuildResult:
    """Build every variant of a plan that can be built; what fails is in the result and in the ledger."""
    user_file = catalog.user_file.read_text("utf-8") if catalog.user_file else ""
    secret = need_secret(farm.store, farm.where.settings.store_key)
    setup = WorkerSetup(farm.store, user_file, farm.processes, farm.jobs.objects, farm.where.settings.cache, secret)
    run = _FarmRun(farm, setup, ledger or Ledger(), listen)
    with run.attempts:
        if farm.to_do.jobs:
            run.store.check_writable()
        check_room("This build", farm.disk)
        run.say_distrusted()
        if farm.to_do.jobs or not run.placed_all():
            _drive(farm, setup, run)
        return run.end()


def _drive(farm: FarmPlan, setup: WorkerSetup, run: _FarmRun) -> None:
    """Start workers and run the jobs; what the store loses meanwhile is made again."""
    farm.jobs.send()
    with started(farm.where, setup, compiles=farm.jobs.compiles) as engine:
        if engine.warning:
            run.hear(FarmEvent(EventKind.UNPROTECTED, 0.0, text=engine.warning))
        if engine.dashboard:
            run.hear(FarmEvent(EventKind.DASHBOARD, 0.0, text=engine.dashboard))
        finished = farm.finished if farm.to_do.jobs else _finished(farm.graph, run.store)
        for _ in range(_ROUNDS):
            result = drive(
                farm.graph,
                engine,
                finished,
                listen=run.hear,
                remake=run.store.forget,
                lost=run.store.lost,
                made=run.store.arrived,
                limit=farm.limit_of,
            )
            run.note(result)
            if run.placed():
                break
            finished = _finished(farm.graph, run.store)


@dataclass
class _FarmRun:
    """One run of a plan: its ledger, and the wheelhouses that are put in their place while other jobs go on."""

    farm: FarmPlan
    setup: WorkerSetup
    ledger: Ledger
    listen: Callable[[FarmEvent], None]
    name: str = field(default_factory=lambda: f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")

    def __post_init__(self) -> None:
        self.store: FarmStore = open_farm_store(self.farm.store, self.setup.secret)
        self._began = time.monotonic()
        self._outcomes: dict[str, tuple[str, JobOutcome]] = {}
        self._failed: dict[str, JobFailure] = {}
        self._made: dict[str, Wheelhouse | NixOutput] = {}
        self._refused: dict[str, str] = {}
        self._lost = 0
        self._already = 0
        self._wrong: dict[str, str] = {}  # by variant, what was wrong with its output
        jobs = [job.job for job in self.farm.graph.jobs.values()]
        self._listed = _listed(self.farm.graph)
        self.store.demand(self._listed)
        self._proofs = {job.wheelhouse: job.gives[0] for job in jobs if isinstance(job, ProveVariant)}
        where = self.farm.where.name
        self.attempts = OpenAttempts(self.ledger)
        for variant in self.farm.variants:
            self.attempts.start(variant.name, variant.method, {**variant.options, "on": where}, variant.configuration)

    def hear(self, event: FarmEvent) -> None:
        if event.kind is EventKind.WORKER_LOST:
            self._lost += 1
        elif event.kind is EventKind.WORKER_REFUSED:
            self._refused[event.worker] = event.text
        self.listen(event)

    def say_distrusted(self) -> None:
        """Why jobs run whose outputs seem to be there."""
        to_do = self.farm.to_do.jobs.values()
        if count := len(self.store.distrusted(key for job in to_do for key in job.gives)):
            text = (
                f"{counted(count, 'output')} of the store {self.store.shown} without your signature: made again. "
                f"Who shares a store shares a key ({KEY_VARIABLE})."
            )
            self.hear(FarmEvent(EventKind.DISTRUSTED, 0.0, text=text))

    def note(self, result: DriveResult) -> None:
        """Keep what became of the jobs, in the ledger too."""
        jobs = self.farm.graph.jobs
        self._already = len(result.already)
        ended = [*result.done.items(), *((name, failure.outcome) for name, failure in result.failed.items())]
        for name, brought in ended:
            outcome = self._with_own_log(name, brought)
            self._outcomes[name] = (jobs[name].label, outcome)
            self._log_job(name, outcome, Result.DONE if outcome.done else Result.FAILED)
            if outcome.code in _WRONG_INPUT:
                self._forget(name)
        for name, cause in {**{name: name for name in result.failed}, **result.never}.items():
            failure = replace(result.failed[cause], outcome=self._outcomes[cause][1])
            for variant in self._ending_with(name):
                self._failed.setdefault(variant, failure)

    def _forget(self, name: str) -> None:
        """What is wrong may be any part that a job or a wheelhouse was made of: the next run makes all of it again."""
        graph = self.farm.graph
        for one in (name, *graph.ancestors(name)):
            if isinstance(graph.jobs[one].job, FetchWheel | CutForGpus | PackVariant):
                for key in set(graph.jobs[one].gives) - self._listed.keys():
                    self.store.forget(key)

    def _ending_with(self, name: str) -> tuple[str, ...]:
        """The variants that a job makes or proves: one that needs less of a failed job than others may be there."""
        graph = self.farm.graph
        if not graph.after[name]:
            return graph.jobs[name].variants
        gives = graph.jobs[name].gives
        return tuple(variant.name for variant in self.farm.variants if variant.key in gives)

    def _log_job(self, name: str, outcome: JobOutcome, result: Result) -> None:
        job = self.farm.graph.jobs[name]
        with suppress(EnvironmentProblem):  # a full disk of the ledger stops nothing
            self.ledger.add_job(
                LedgerJob(
                    run=self.name,
                    key=name,
                    label=job.label,
                    worker=outcome.worker,
                    duration=outcome.seconds,
                    result=result,
                    hits=outcome.hits,
                    misses=outcome.misses,
                    error=outcome.error,
                    fix=outcome.hint,
                    failure=outcome.failure,
                    log=outcome.log_path,
                    variants=job.variants,
                )
            )

    def _with_own_log(self, name: str, outcome: JobOutcome) -> JobOutcome:
        """The log of a job that failed is written on this machine, and its words name that file."""
        if not outcome.log:
            return outcome
        there = outcome.log_path
        text = f"torchtailor: the end of {there} on {outcome.worker}\n{outcome.log}" if there else outcome.log
        path = state_folder() / "logs" / f"{self.name}-{name[:12]}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError:
            return outcome
        hint = outcome.hint.replace(there, str(path)) if there else f"{outcome.hint} The log is {path}."
        return msgspec.structs.replace(outcome, hint=hint, log_path=str(path))

    def placed_all(self) -> bool:
        """Take everything from the store, where no job has to run: no worker is started for that."""
        self._already = len(self.farm.graph.jobs)
        return self.placed()

    def placed(self) -> bool:
        """Put all wheelhouses that were packed in their place; False where the store has lost a part of one."""
        keys = {variant.name: variant.key for variant in self.farm.variants}
        with ThreadPoolExecutor(2) as pool:
            waiting: dict[str, Future[Wheelhouse | NixOutput]] = {}
            for variant in self.farm.variants:
                if variant.key and variant.name not in self._failed and variant.name not in self._made:
                    waiting[variant.name] = pool.submit(self._place, variant)
        complete = True
        for name, future in waiting.items():
            try:
                found = future.result()
            except MissingOutputError:
                complete = False
                continue
            self._made[name] = found
            maker = self.farm.graph.makers[keys[name]]
            if there := maker not in self._outcomes:
                self._log_job(maker, JobOutcome(done=True), Result.FOUND)
            running = self.attempts.running[name]
            running.found, running.output_bytes = there, found.output_bytes
            running.input_bytes = found.input_bytes if isinstance(found, Wheelhouse) else None
            self.attempts.end(name)
        return complete

    def _place(self, variant: FarmVariant) -> Wheelhouse | NixOutput:
        """Under the name that it was packed with: a source may have another version than its release."""
        out = self.farm.plan.out
        if taken := self.farm.jobs.take(variant, self.store):
            return taken
        record = self.store.need(variant.key)
        name = str(record.facts.get("variant"))
        if not is_file_name(name) or (not self.farm.jobs.compiles and name != variant.name):
            self._refuse(variant, "it is of another variant")
        if (proof := self._proofs.get(variant.key)) and self.store.need(proof).inputs != {variant.key: record.digest}:
            self._refuse(variant, "its proof is of other files", proof)
        earlier = "An earlier wheelhouse is unchanged."
        check_place(out / name)
        job = self.farm.graph.jobs[self.farm.graph.makers[variant.key]].job
        with disk_errors(out, unchanged=earlier), new_folder(out / name) as stage:
            restore_folder(variant.key, stage, self.store)
            if why := check_collected(job, record, stage, self._listed):
                self._refuse(variant, why)
        return read_wheelhouse(out / name)

    def _refuse(self, variant: FarmVariant, why: str, proof: str = "") -> NoReturn:
        """What is not as the plan demands is made again: the wheelhouse with its parts, or a proof of another one."""
        self._wrong[variant.name] = why
        if proof:
            self.store.forget(proof)
        else:
            self._forget(self.farm.graph.makers[variant.key])
        raise MissingOutputError(variant.key, self.store.shown)

    def end(self) -> FarmBuildResult:
        variants = {variant.name: variant for variant in self.farm.variants}
        for name, failure in self._failed.items():
            running, outcome = self.attempts.running[name], failure.outcome
            running.stage, running.fix = failure.job.label, outcome.hint
            running.failure, running.log = outcome.failure, outcome.log_path
            self.attempts.end(name, BuildFailedError(outcome.error, outcome.hint))
        for name in variants.keys() - self._made.keys() - self._failed.keys():
            if not variants[name].key:
                self.attempts.end(name)
                continue
            if why := self._wrong.get(name):
                raise CheckFailedError(
                    f"What the store {self.store.shown} has of {name} is not what the plan demands: {why}.",
                    "Find out who writes to the store and who its workers are; nothing of it was put into the output.",
                )
            raise EnvironmentProblem(
                f"The store {self.store.shown} loses what is written to it: the output of {name} is incomplete.",
                "Check the store; run the same command to resume.",
            )
        made = [self._made[name] for name in variants if name in self._made]
        return FarmBuildResult(
            wheelhouses=tuple(one for one in made if isinstance(one, Wheelhouse)),
            failed={name: self._failed[name] for name in variants if name in self._failed},
            variants_index=self.farm.jobs.finish(self._made, self._restored),
            outcomes=self._outcomes,
            already=self._already,
            lost=self._lost,
            refused=self._refused,
            seconds=round(time.monotonic() - self._began, 2),
            outputs=tuple(one for one in made if isinstance(one, NixOutput)),
            proven=self.farm.proven,
        )

    def _restored(self, jobs: Sequence[PackVariant]) -> JobContext:
        """What jobs have packed, official wheels too, in the cache of this machine."""
        context = workbench(self.setup.here).context(self.farm.plan.out)
        for job in jobs:
            restore_packed(job, context, self.store, stock=True)
        return context


def failure_of(result: FarmBuildResult) -> TorchtailorError | None:
    """The error that a build with failed variants ends with; the code is the job's own where they all agree."""
    if not result.failed:
        return None
    names = list(result.failed)
    first = result.failed[names[0]]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    built = len(result.wheelhouses) + len(result.outputs)
    error = BuildFailedError(
        f"{len(names)} of {len(names) + built} variants failed: {shown}. {first.job.label}: {first.outcome.error}",
        first.outcome.hint,
    )
    codes = {failure.outcome.code for failure in result.failed.values()}
    if len(codes) == 1 and (code := codes.pop()):
        error.code = ExitCode(code)
    return error
