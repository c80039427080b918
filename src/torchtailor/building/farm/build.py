"""A build of wheels on many machines: the plan with its cost, the run, and wheelhouses in their place."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from torchtailor.building.base import UnavailableVariant, unavailable_rows
from torchtailor.building.farm.derivations import nix_graph, send_derivations, take
from torchtailor.building.farm.drive import DriveResult, JobFailure, drive
from torchtailor.building.farm.events import EventKind, FarmEvent, JobOutcome
from torchtailor.building.farm.fingerprint import describe_worker
from torchtailor.building.farm.graph import GraphCost, GraphJob, JobGraph
from torchtailor.building.farm.jobs import PROVEN_LEVEL, RealiseDerivation, gives_of, own_rows
from torchtailor.building.farm.objects import own_objects
from torchtailor.building.farm.perform import WorkerSetup, restore_folder, restore_packed, workbench
from torchtailor.building.farm.simulate import Simulation, simulate
from torchtailor.building.farm.sources import SourceCosts, source_graph, source_job
from torchtailor.building.farm.space import DiskNeed, check_space, disk_needs
from torchtailor.building.farm.store import FarmStore, MissingOutputError, open_farm_store
from torchtailor.building.farm.wheels import wheel_graph, with_hashes
from torchtailor.building.farm.where import PlaceKind, Where, chosen_store, started
from torchtailor.building.ledger.ledger import Ledger, LedgerJob, Result, Running
from torchtailor.building.ledger.rates import Rates, learned
from torchtailor.building.nix.backend import NixPlan
from torchtailor.building.nix.builder import NixOutput
from torchtailor.building.source.backend import SourcePlan
from torchtailor.building.source.ccache import remote_storage
from torchtailor.building.wheel.builder import configuration_of, pack_of, write_index_of
from torchtailor.building.wheel.plan import VariantPlan, WheelPlan
from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog, load_catalog
from torchtailor.core.disk import disk_errors, new_folder, state_folder, write_atomically
from torchtailor.core.documents import Bytes, Seconds, document
from torchtailor.core.errors import BuildFailedError, EnvironmentProblem, ExitCode, TorchtailorError, UsageError
from torchtailor.wheelhouse.places import check_place
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, WheelhouseDocument, read_wheelhouse

_SHOWN_WORKERS = (1, 8, 32, 128)
_ROUNDS = 3  # of a run whose store loses what it has
_ATTEMPTS = 50  # of which rates are learned
_LEAST_LIMIT = 3600.0  # seconds until a job is taken for hung
_TIMES_EXPECTED = 10  # or so many times what it was expected to take


@dataclass(frozen=True)
class FarmVariant:
    """A variant of a plan, and the output that is its wheelhouse."""

    name: str
    method: str
    key: str  # empty where only some targets are built, which make no wheelhouse
    options: Mapping[str, object]
    configuration: Mapping[str, object]
    derivation: str = ""  # of a build with Nix


@dataclass(frozen=True)
class FarmPlan:
    """The jobs of a build on a place, and what of them is in the store."""

    plan: WheelPlan | SourcePlan | NixPlan
    variants: tuple[FarmVariant, ...]
    where: Where
    store: str
    shown_store: str
    graph: JobGraph
    finished: frozenset[str]
    rates: Rates
    objects: str = ""
    prove: bool = False
    rows: str = ""  # a digest of the user's rows of the catalog

    @property
    def disk(self) -> tuple[DiskNeed, ...]:
        """What is written to each file system of this machine; unknown of other methods, which look for themselves."""
        if not isinstance(self.plan, WheelPlan):
            return ()
        return disk_needs(self.plan, self.to_do.jobs, self.store, here=not self.where.kind.is_remote)

    @property
    def compiles(self) -> bool:
        return isinstance(self.plan, SourcePlan)

    @property
    def processes(self) -> int:
        """Processes that one job may start: those of --jobs, of the place, or in this process what the machine has."""
        if isinstance(self.plan, SourcePlan) and (given := self.plan.builders[0].options.jobs):
            return given
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
        if not isinstance(self.plan, WheelPlan):
            return None
        jobs = self.to_do.jobs
        sizes = {file.key: file.size or 0 for file in self.plan.files if file.local_path is None}
        return sum(size for key, size in sizes.items() if key in jobs)

    @property
    def cost(self) -> GraphCost:
        return self.to_do.cost

    def limit_of(self, job: GraphJob) -> float:
        """Seconds of silence after which a job is taken for hung."""
        given = self.where.settings.job_timeout
        return float(given) if given else max(_LEAST_LIMIT, _TIMES_EXPECTED * job.weight.seconds)

    def simulated(self) -> tuple[Simulation, ...]:
        """The expected time on some numbers of workers, by the policy that the run itself has."""
        counts = sorted({self.where.workers, *_SHOWN_WORKERS})
        return tuple(simulate(self._planned_for(workers), workers, finished=self.finished) for workers in counts)

    def _planned_for(self, workers: int) -> JobGraph:
        """More workers cut in more pieces; the outputs are the same."""
        if isinstance(self.plan, WheelPlan):
            return wheel_graph(self.plan, rates=self.rates, workers=workers, prove=self.prove, rows=self.rows)
        return self.graph

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
    plan: WheelPlan | SourcePlan | NixPlan,
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
    if isinstance(plan, WheelPlan) and plan.options.cut.split:
        raise UsageError(
            "--split builds on one machine: which packs torch asks for is known when all other wheels are cut.",
            "Omit --on, or --split.",
        )
    chosen = chosen_store(where, store)
    opened = open_farm_store(chosen)
    try:
        rates = learned((ledger or Ledger()).attempts(limit=_ATTEMPTS))
    except EnvironmentProblem:
        rates = Rates()
    shared = ""
    catalog = catalog or load_catalog()
    rows = own_rows(catalog)
    if isinstance(plan, WheelPlan):
        plan = with_hashes(plan)
        graph = wheel_graph(plan, rates=rates, workers=where.workers, prove=prove, rows=rows)
        variants = tuple(_wheel_variant(plan, variant) for variant in plan.plans)
    elif isinstance(plan, NixPlan):
        graph, variants = _nix_jobs(catalog, plan, chosen)
    elif isinstance(plan, SourcePlan):
        shared = objects or where.settings.objects or own_objects(chosen)
        remote_storage(shared)
        graph, variants = _source_jobs(plan, shared, shards, rows)
    else:
        raise UsageError("This method builds on one machine: its jobs are not known.", "Omit --on.")
    finished = opened.finished(key for job in graph.jobs.values() for key in job.gives)
    farm = FarmPlan(plan, variants, where, chosen, opened.shown, graph, finished, rates, shared, prove, rows)
    return _with_cost(farm, plan) if isinstance(plan, WheelPlan) else farm


def _with_cost(farm: FarmPlan, plan: WheelPlan) -> FarmPlan:
    """The plan with the time of its jobs on this place, and with the disk that has the least room for them."""
    seconds = simulate(farm.graph, farm.where.workers, finished=farm.finished).seconds
    cost = replace(plan.cost, seconds=seconds)
    if needs := farm.disk:
        least = min(needs, key=lambda need: need.left)
        cost = replace(cost, disk=least.size, disk_free=least.free)
    return replace(farm, plan=replace(plan, cost=cost))


def _wheel_variant(plan: WheelPlan, variant: VariantPlan) -> FarmVariant:
    (key,) = gives_of(pack_of(plan, variant))
    return FarmVariant(variant.name, WHEEL, key, plan.options.to_json(), configuration_of(variant))


def _nix_jobs(catalog: Catalog, plan: NixPlan, store: str) -> tuple[JobGraph, tuple[FarmVariant, ...]]:
    made = nix_graph(catalog, plan, store)
    variants = tuple(
        FarmVariant(name, NIX, gives_of(RealiseDerivation(derivation))[0], {}, {}, derivation)
        for name, derivation in made.derivations.items()
    )
    return made.graph, variants


def _source_jobs(
    plan: SourcePlan, objects: str, shards: int | None, rows: str
) -> tuple[JobGraph, tuple[FarmVariant, ...]]:
    first = plan.builders[0]
    described = describe_worker()
    made = source_graph(
        plan.matrix.groups,
        source_job(first.source),
        first.options,
        SourceCosts.of(first.tables.cost),
        toolchain=f"{described['compiler']}, glibc {described['glibc']}",
        objects=objects,
        rows=rows,
        wanted_shards=shards,
    )
    options = {"source": str(first.source), "profile": first.options.profile, "set": list(first.options.overrides)}
    variants = tuple(FarmVariant(name, SOURCE, key, options, {}) for name, key in made.results.items())
    return made.graph, variants


def run_farm(
    farm: FarmPlan,
    catalog: Catalog,
    *,
    ledger: Ledger | None = None,
    listen: Callable[[FarmEvent], None] = lambda _: None,
) -> FarmBuildResult:
    """Build every variant of a plan that can be built; what fails is in the result and in the ledger."""
    user_file = catalog.user_file.read_text("utf-8") if catalog.user_file else ""
    setup = WorkerSetup(farm.store, user_file, farm.processes, farm.objects, farm.where.settings.cache)
    run = _FarmRun(farm, setup, ledger or Ledger(), listen)
    with run.attempts():
        if farm.to_do.jobs:
            run.store.check_writable()
        check_space(farm.disk)
        if farm.to_do.jobs or not run.placed_all():
            _drive(farm, setup, run)
        return run.end()


def _drive(farm: FarmPlan, setup: WorkerSetup, run: _FarmRun) -> None:
    """Start workers and run the jobs; what the store loses meanwhile is made again."""
    if isinstance(farm.plan, NixPlan):
        send_derivations([variant.derivation for variant in farm.variants], farm.store)
    with started(farm.where, setup, compiles=farm.compiles) as engine:
        if engine.warning:
            run.hear(FarmEvent(EventKind.UNPROTECTED, 0.0, text=engine.warning))
        if engine.dashboard:
            run.hear(FarmEvent(EventKind.DASHBOARD, 0.0, text=engine.dashboard))
        finished = farm.finished if farm.to_do.jobs else run.store.finished(farm.graph.makers)
        for _ in range(_ROUNDS):
            result = drive(
                farm.graph,
                engine,
                finished,
                listen=run.hear,
                remake=run.store.forget,
                lost=run.store.lost,
                limit=farm.limit_of,
            )
            run.note(result)
            if run.placed():
                break
            finished = run.store.finished(farm.graph.makers)


@dataclass
class _FarmRun:
    """One run of a plan: its ledger, and the wheelhouses that are put in their place while other jobs go on."""

    farm: FarmPlan
    setup: WorkerSetup
    ledger: Ledger
    listen: Callable[[FarmEvent], None]
    name: str = field(default_factory=lambda: f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")

    def __post_init__(self) -> None:
        self.store: FarmStore = open_farm_store(self.farm.store)
        self._began = time.monotonic()
        self._outcomes: dict[str, tuple[str, JobOutcome]] = {}
        self._failed: dict[str, JobFailure] = {}
        self._made: dict[str, Wheelhouse | NixOutput] = {}
        self._refused: dict[str, str] = {}
        self._lost = 0
        self._already = 0
        where = self.farm.where.name
        self._attempts = {variant.name: _Attempt(self.ledger, variant, where) for variant in self.farm.variants}

    @contextmanager
    def attempts(self) -> Iterator[None]:
        """Whatever ends the run early is what the ledger says of the variants that were not ready."""
        try:
            yield
        except BaseException as error:
            for attempt in self._attempts.values():
                attempt.stopped(error)
            raise

    def hear(self, event: FarmEvent) -> None:
        if event.kind is EventKind.WORKER_LOST:
            self._lost += 1
        elif event.kind is EventKind.WORKER_REFUSED:
            self._refused[event.worker] = event.text
        self.listen(event)

    def note(self, result: DriveResult) -> None:
        """Keep what became of the jobs, in the ledger too."""
        jobs = self.farm.graph.jobs
        self._already = len(result.already)
        ended = [*result.done.items(), *((name, failure.outcome) for name, failure in result.failed.items())]
        for name, brought in ended:
            outcome = self._with_own_log(name, brought)
            self._outcomes[name] = (jobs[name].label, outcome)
            self._log_job(name, outcome, Result.DONE if outcome.done else Result.FAILED)
        for name, cause in {**{name: name for name in result.failed}, **result.never}.items():
            failure = replace(result.failed[cause], outcome=self._outcomes[cause][1])
            for variant in self._ending_with(name):
                self._failed.setdefault(variant, failure)

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
            self._attempts[name].done(found, in_store=there)
        return complete

    def _place(self, variant: FarmVariant) -> Wheelhouse | NixOutput:
        """Under the name that it was packed with: a source may have another version than its release."""
        out = self.farm.plan.out
        if variant.derivation:
            return take(variant.name, variant.derivation, out, self.farm.store, self.store)
        name = str(self.store.need(variant.key).facts["variant"])
        earlier = "An earlier wheelhouse is unchanged."
        check_place(out / name)
        with disk_errors(out, unchanged=earlier), new_folder(out / name) as stage:
            restore_folder(variant.key, stage, self.store)
        return read_wheelhouse(out / name)

    def end(self) -> FarmBuildResult:
        variants = {variant.name: variant for variant in self.farm.variants}
        for name, failure in self._failed.items():
            self._attempts[name].failed(failure)
        for name in variants.keys() - self._made.keys() - self._failed.keys():
            if not variants[name].key:
                self._attempts[name].done(None)
                continue
            raise EnvironmentProblem(
                f"The store {self.store.shown} loses what is written to it: the output of {name} is incomplete.",
                "Check the store; run the same command to resume.",
            )
        made = [self._made[name] for name in variants if name in self._made]
        return FarmBuildResult(
            wheelhouses=tuple(one for one in made if isinstance(one, Wheelhouse)),
            failed={name: self._failed[name] for name in variants if name in self._failed},
            variants_index=self._variants_index(),
            outcomes=self._outcomes,
            already=self._already,
            lost=self._lost,
            refused=self._refused,
            seconds=round(time.monotonic() - self._began, 2),
            outputs=tuple(one for one in made if isinstance(one, NixOutput)),
            proven=self.farm.proven,
        )

    def _variants_index(self) -> Path | None:
        plan = self.farm.plan
        if not isinstance(plan, WheelPlan) or not plan.options.variants or not self._made:
            return None
        bench = workbench(self.setup.here)
        context = bench.context(plan.out)
        packs = [(one, pack_of(plan, one)) for one in plan.plans if one.name in self._made]
        for _, job in packs:
            restore_packed(job, context, self.store, stock=True)
        return write_index_of(packs, context)


class _Attempt:
    """The attempt at one variant in the ledger, which ends when the variant does."""

    def __init__(self, ledger: Ledger, variant: FarmVariant, where: str) -> None:
        self._stack = ExitStack()
        self._running: Running = self._stack.enter_context(
            ledger.attempt(
                variant.name,
                variant.method,
                options={**variant.options, "on": where},
                configuration=variant.configuration,
            )
        )

    def done(self, made: Wheelhouse | NixOutput | None, *, in_store: bool = False) -> None:
        self._running.found = in_store
        if isinstance(made, Wheelhouse):
            self._running.input_bytes = made.input_bytes
        if made is not None:
            self._running.output_bytes = made.output_bytes
        self._stack.close()

    def stopped(self, error: BaseException) -> None:
        """End it, unless it has ended, with the error that ended the run."""
        with suppress(BaseException), self._stack:
            raise error

    def failed(self, failure: JobFailure) -> None:
        outcome = failure.outcome
        self._running.stage, self._running.fix = failure.job.label, outcome.hint
        self._running.failure, self._running.log = outcome.failure, outcome.log_path
        with suppress(BuildFailedError), self._stack:
            raise BuildFailedError(outcome.error, outcome.hint)


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
