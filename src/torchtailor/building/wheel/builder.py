"""Runs the graph of a build from official wheels in this process: files are in its cache, and in no store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from torchtailor.building.base import Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.graph.graph import GraphJob
from torchtailor.building.graph.here import run_here
from torchtailor.building.ledger.ledger import Ledger, OpenAttempts
from torchtailor.building.ledger.rates import CUT_KEY, FETCH_KEY
from torchtailor.building.shown import Shown, index_lines, wheelhouse_lines
from torchtailor.building.wheel.graph import pack_of, wheel_graph
from torchtailor.building.wheel.plan import VariantPlan, WheelPlan
from torchtailor.building.wheel_jobs import (
    CutForGpus,
    FetchWheel,
    JobContext,
    PackVariant,
    cut_all,
    fetch_all,
    pack,
    packed_entries,
)
from torchtailor.catalog import WHEEL
from torchtailor.core.disk import DamagedFileError, disk_errors
from torchtailor.core.documents import Bytes, Seconds, document, plain
from torchtailor.core.format import counted
from torchtailor.trees.index.variants import VariantLabel
from torchtailor.wheelhouse.variants_index import write_variants_index
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, WheelhouseDocument

_ENOUGH_BYTES = 10_000_000  # to measure a rate


@dataclass(frozen=True)
class WheelBuildResult:
    """What a build from official wheels gave."""

    wheelhouses: tuple[Wheelhouse, ...]
    variants_index: Path | None  # the index of wheel variants, where it was requested
    downloaded: int
    seconds: float

    def lines(self) -> Iterator[Shown]:
        yield from wheelhouse_lines(self.wheelhouses)
        yield from index_lines(self.variants_index, self.wheelhouses[0])

    def document(self, unavailable: Unavailable) -> WheelBuildDocument:
        return document(WheelBuildDocument, self, unavailable=unavailable_rows(unavailable))


class WheelBuildDocument(Struct):
    """What a build from official wheels gave."""

    wheelhouses: tuple[WheelhouseDocument, ...]
    variants_index: Path | None
    downloaded: Bytes
    seconds: Seconds
    unavailable: tuple[UnavailableVariant, ...]


def run_plan(plan: WheelPlan, context: JobContext, ledger: Ledger) -> WheelBuildResult:
    """Build every variant of a plan in this process; each is in the ledger, and in its place only when it is whole."""
    began = time.monotonic()
    with OpenAttempts(ledger) as attempts:
        run = _HereRun(plan, context, attempts)
        run_here(wheel_graph(plan), run.perform, together="fetch")
        packed = ((variant, pack_of(plan, variant)) for variant in plan.plans)
        variants_index = write_index_of([*packed], context) if plan.options.variants else None
    return WheelBuildResult(
        wheelhouses=tuple(run.made[variant.name] for variant in plan.plans),
        variants_index=variants_index,
        downloaded=run.downloaded,
        seconds=round(time.monotonic() - began, 2),
    )


class _HereRun:
    """The jobs of a plan in this process: files are in its cache, stages and rates in the ledger."""

    def __init__(self, plan: WheelPlan, context: JobContext, attempts: OpenAttempts) -> None:
        self._context, self._attempts = context, attempts
        for variant in plan.plans:
            attempts.start(variant.name, WHEEL, plain(plan.options.document), configuration_of(variant))
        self._measured = {FETCH_KEY: (0, 0.0), CUT_KEY: (0, 0.0)}  # bytes and seconds
        self.made: dict[str, Wheelhouse] = {}
        self.downloaded = 0

    def perform(self, jobs: Sequence[GraphJob]) -> None:
        """Wheels are fetched in parallel; all other jobs come one by one, and use all cores themselves."""
        match jobs[0].job:
            case FetchWheel():
                self._fetch([job.job for job in jobs if isinstance(job.job, FetchWheel)])
            case CutForGpus() as cut:
                self._cut(cut)
            case PackVariant() as packing:
                self._pack(packing)

    def _fetch(self, jobs: Sequence[FetchWheel]) -> None:
        self._context.progress.stage(f"Fetching {counted(len(jobs), 'wheel')}")
        with self._measuring("fetch", FETCH_KEY) as sizes:
            fetched = fetch_all(jobs, self._context)
            sizes += [item.downloaded for item in fetched.values()]
        self.downloaded = sum(sizes)

    def _cut(self, job: CutForGpus) -> None:
        with self._measuring("cut", CUT_KEY) as sizes:
            stock = self._context.locate(self._context.digest(job.source, job.filename), job.filename).stat().st_size
            sizes += [stock for cut in cut_all(job, self._context) if not cut.from_cache]

    def _pack(self, job: PackVariant) -> None:
        name = job.description.variant
        running = self._attempts.running[name]
        running.stage = "wheelhouse"
        self._context.progress.stage(f"Writing {name}")
        self.made[name] = made = pack(job, self._context)
        running.input_bytes, running.output_bytes = made.input_bytes, made.output_bytes
        running.stage = ""
        self._attempts.end(name)  # done, even if the next one fails

    @contextmanager
    def _measuring(self, stage: str, key: str) -> Iterator[list[int]]:
        """Note the stage of all variants, and how many bytes a second are fetched or cut."""
        began, sizes = time.monotonic(), list[int]()
        for running in self._attempts.running.values():
            running.stage = stage
        yield sizes
        size, seconds = self._measured[key]
        self._measured[key] = size, seconds = size + sum(sizes), seconds + time.monotonic() - began
        if size > _ENOUGH_BYTES:
            for running in self._attempts.running.values():
                running.configuration[key] = round(size / seconds)


def configuration_of(plan: VariantPlan) -> dict[str, object]:
    """What the ledger says of a variant."""
    return {"torch": str(plan.variant.release.version), "build": plan.label, "python": plan.variant.python}


def write_index_of(packed: Sequence[tuple[VariantPlan, PackVariant]], context: JobContext) -> Path:
    """Write the index of wheel variants of variants that were packed."""
    context.progress.stage("Writing the index of wheel variants")
    labelled = [(_label(variant), packed_entries(job, context)) for variant, job in packed]
    with disk_errors(context.out, unchanged="An earlier index is unchanged."):
        try:
            return write_variants_index(labelled, context.out, cache=context.cache.root)
        except DamagedFileError as error:
            raise context.without(error) from error


def _label(plan: VariantPlan) -> VariantLabel | None:
    gpu, cuda = plan.variant.gpu, plan.variant.build.cuda
    return VariantLabel(plan.label, cuda, gpu.capability) if gpu and cuda else None
