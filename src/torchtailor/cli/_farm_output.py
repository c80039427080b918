"""A build on many machines as people see it: the plan, the live table, what came of it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from torchtailor.building.graph.events import EventKind, FarmEvent
from torchtailor.building.graph.policy import THIS_PROCESS
from torchtailor.cli import ui
from torchtailor.core.documents import plain
from torchtailor.core.format import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from torchtailor.building.farm.build import FarmBuildResult, FarmPlan

_FRAME = 8  # lines of the window around the rows of the table
_NAMES = 12  # variants of a plan that are listed
_SAID = {
    EventKind.DASHBOARD: "Dask's dashboard: {text}",
    EventKind.UNPROTECTED: "warning: {text}",
    EventKind.DISTRUSTED: "warning: {text}",
    EventKind.WORKER_JOINED: "worker {worker} is there",
    EventKind.WORKER_SILENT: "{text}",
    EventKind.WORKER_REFUSED: "warning: worker {worker} is not used: {text}",
    EventKind.WORKER_LOST: "warning: worker {worker} is gone",
    EventKind.WORKER_SET_ASIDE: "warning: worker {worker} gets no more jobs: {text}",
    EventKind.WAITING: "warning: {text} Waiting for workers; the run ends in {took} if none comes.",
    EventKind.JOB_DONE: "{job} ({took} on {worker})",
    EventKind.JOB_AGAIN: "{job}: retrying, because {text}",
    EventKind.JOB_FAILED: "error: {job}: {text}",
}


def show_farm_plan(plan: FarmPlan) -> None:
    """The jobs, what they cost, and how long they should take."""
    from torchtailor.cli._build_output import show_unavailable

    say = ui.out()
    cost = plan.cost
    show_unavailable(plan.plan.unavailable)
    show_farm_variants(plan, say)
    rows = [(kind, jobs, open_, jobs - open_) for kind, (jobs, open_) in plan.kinds().items()]
    say.print(ui.table(("jobs", "in all", "to run", "done or not needed"), rows))
    if not cost.jobs:
        say.print("Everything is in the store: nothing has to run.")
        return
    fetched = f"; {ui.human_bytes(plan.download)} to download at most" if plan.download is not None else ""
    say.print(
        f"{cost.core_seconds / 3600:.2f} core-hours; the longest chain of jobs takes "
        f"{ui.human_seconds(cost.critical_seconds)}{fetched}.",
        markup=False,
    )
    if plan.proven:
        say.print(f"--prove verifies each wheelhouse at the level {plan.proven}, without importing it.", markup=False)
    times = [(one.workers, ui.human_seconds(one.seconds), f"{one.efficiency:.0%}") for one in plan.simulated()]
    say.print(ui.table(("workers", "expected time", "busy"), times))


def show_farm_variants(plan: FarmPlan, say: Console) -> None:
    """What the selectors stand for, where it is built, and by which store."""
    variants = plan.plan.variants
    head = f"{counted(len(variants), 'variant')} on {plan.where.name}, store {plan.shown_store}"
    say.print(head, markup=False, soft_wrap=True)
    for variant in variants[:_NAMES]:
        say.print(
            f"  {variant.unique_name}: PyTorch {variant.release.version} ({variant.build.label}), "
            f"Python {variant.python}, {variant.arch}",
            markup=False,
            soft_wrap=True,
        )
    if (more := len(variants) - _NAMES) > 0:
        say.print(f"  and {more} more, which --json lists", markup=False)


class FarmDisplay:
    """Shows a run on stderr: a table on a terminal, a line for each event elsewhere, JSON lines for scripts."""

    def __init__(self, plan: FarmPlan, *, quiet: bool, plain: bool, as_json: bool) -> None:
        self._quiet, self._as_json, self._where = quiet, as_json, plan.where.name
        self._weights = {name: job.weight.seconds for name, job in plan.to_do.jobs.items()}
        self._workers: dict[str, dict[str, Any]] = {}
        self._standing: dict[str, int] = {}
        self._hits = self._misses = 0
        self._worked = self._weighed = 0.0
        self._time = 0.0
        self._ends: float | None = None  # when the run ends for want of workers
        self._live: Live | None = None
        if not quiet and not plain and not as_json and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=ui.err(), refresh_per_second=4, transient=True, get_renderable=self._table)

    def __enter__(self) -> FarmDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: FarmEvent) -> None:
        self._count(event)
        if self._quiet:
            return
        if self._as_json:
            ui.print_event(plain(replace(event, time=round(event.time, 3))))
        elif event.kind in _SAID and (self._live is None or event.kind is not EventKind.JOB_DONE):
            text = _SAID[event.kind].format(
                worker=event.worker, job=event.job, text=event.text, took=ui.human_seconds(event.seconds)
            )
            standing = event.standing
            head = f"[{standing['done']}/{sum(standing.values())}] " if event.kind is EventKind.JOB_DONE else ""
            ui.err().print(head + text, markup=False, soft_wrap=True)

    def _count(self, event: FarmEvent) -> None:
        self._standing, self._time = event.standing, event.time
        self._hits += event.hits
        self._misses += event.misses
        if event.kind is EventKind.WAITING:
            self._ends = time.monotonic() + event.seconds
        elif event.kind in (EventKind.WORKER_JOINED, EventKind.JOB_STARTED):
            self._ends = None
        row = self._workers.setdefault(event.worker, {"done": 0, "failed": 0, "now": {}}) if event.worker else {}
        match event.kind:
            case EventKind.JOB_STARTED:
                row["now"][event.key] = event.job
            case EventKind.JOB_DONE:
                row["now"].pop(event.key, None)
                row["done"] += 1
                self._worked += event.seconds
                self._weighed += self._weights.pop(event.key, 0.0)
            case EventKind.JOB_AGAIN | EventKind.JOB_FAILED:
                row.get("now", {}).pop(event.key, None)
                if row:
                    row["failed"] += 1
            case EventKind.WORKER_LOST | EventKind.WORKER_REFUSED:
                self._workers.pop(event.worker, None)

    @property
    def _seen(self) -> dict[str, dict[str, Any]]:
        """The workers; this process is none, unless it has something to do."""
        return {name: row for name, row in self._workers.items() if name != THIS_PROCESS or row["now"] or row["done"]}

    @property
    def left(self) -> float | None:
        """Seconds until the end, by the speed so far."""
        busy = len(self._seen)
        if not busy or not self._weighed:
            return None
        return sum(self._weights.values()) * (self._worked / self._weighed) / busy

    @property
    def _waiting(self) -> str:
        if self._ends is None:
            return ""
        return f" (the run ends in {ui.human_seconds(max(0.0, self._ends - time.monotonic()))} if none comes)"

    def _table(self) -> Table | Text:
        """As many workers as the window has lines for, the busy ones first: what is below them must be seen."""
        from rich.text import Text

        if not self._seen:
            return Text(f"Waiting for workers of {self._where} ...{self._waiting}")
        room = max(3, ui.err().size.height - _FRAME)
        ordered = sorted(self._seen.items(), key=lambda item: not item[1]["now"])
        rows = [(name, row["done"], row["failed"], _running(row["now"].values())) for name, row in ordered[:room]]
        drawn = ui.table(("worker", "done", "again", "running"), rows)
        drawn.columns[-1].no_wrap, drawn.columns[-1].overflow = True, "ellipsis"
        more = f"and {counted(len(ordered) - room, 'worker')} more; " if len(ordered) > room else ""
        left = f", about {ui.human_seconds(self.left)} left" if self.left else ""
        asked = self._hits + self._misses
        hits = f", {self._hits / asked:.0%} from caches" if self._hits else ""
        counts = ", ".join(f"{count} {name}" for name, count in self._standing.items())
        waiting = f"; waiting for workers{self._waiting}" if self._waiting else ""
        drawn.caption = f"{more}{counts}{hits}{left}{waiting}"
        drawn.caption_justify = "left"
        return drawn


def _running(labels: Iterable[str]) -> str:
    first, *others = [*labels, ""]
    return f"{first} (+{len(others) - 1})" if len(others) > 1 else first


def show_farm_result(result: FarmBuildResult, *, quiet: bool) -> None:
    from torchtailor.cli._build_output import show

    show(result.lines())
    if quiet:
        return
    ran = len(result.outcomes)
    workers = len({outcome.worker for _, outcome in result.outcomes.values()})
    lost = f", {counted(result.lost, 'worker')} lost" if result.lost else ""
    said = f"{counted(ran, 'job')} ran on {counted(workers, 'worker')}, {result.already} were done or not needed{lost}"
    if not ran and not result.failed:
        said = "Everything was in the store, and no job had to run"
    ui.err().print(f"{said}; {ui.human_seconds(result.seconds)}.", markup=False)
    if result.proven and result.wheelhouses:
        number, first = counted(len(result.wheelhouses), "wheelhouse"), result.wheelhouses[0].path
        ui.err().print(
            f"{number} proven at the level {result.proven}; on a machine that runs it, `torchtailor verify {first}` "
            "goes on to import and GPU.",
            markup=False,
            soft_wrap=True,
        )
    for variant, failure in result.failed.items():
        ui.err().print(f"{variant}: {failure.job.label}: {failure.outcome.error}", markup=False, soft_wrap=True)
