"""Carries out a plan: fetch all wheels once, cut each for each GPU once, pack a wheelhouse per variant."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from torchtailor.building.base import Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.cutting import WheelCut
from torchtailor.building.ledger.ledger import Ledger, Running
from torchtailor.building.ledger.rates import CUT_KEY, FETCH_KEY
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import PlannedWheel, Treatment, VariantPlan, WheelPlan
from torchtailor.building.wheel_jobs import (
    CutForGpus,
    FetchWheel,
    JobContext,
    PackedWheel,
    PackVariant,
    cut_all,
    fetch_all,
    pack,
    packed_entries,
)
from torchtailor.catalog import WHEEL
from torchtailor.core.disk import DamagedFileError, disk_errors
from torchtailor.core.documents import Bytes, Seconds, document
from torchtailor.core.urls import without_login
from torchtailor.fetch.download import Fetched
from torchtailor.surgery.cut_document import JobCut
from torchtailor.trees.index.variants import VariantLabel
from torchtailor.wheelhouse.entry import WheelhouseDescription
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

    def document(self, unavailable: Unavailable) -> WheelBuildDocument:
        return document(WheelBuildDocument, self, unavailable=unavailable_rows(unavailable))


class WheelBuildDocument(Struct):
    """What a build from official wheels gave."""

    wheelhouses: tuple[WheelhouseDocument, ...]
    variants_index: Path | None
    downloaded: Bytes
    seconds: Seconds
    unavailable: tuple[UnavailableVariant, ...]


def fetch_jobs(plan: WheelPlan) -> list[FetchWheel]:
    return [FetchWheel(file.address) for file in plan.files]


Cuts = Mapping[str, WheelCut | None]  # that are done, by the keys of their jobs


def cut_jobs(plan: WheelPlan, cuts: Cuts) -> Iterator[CutForGpus]:
    """For each wheel, the cuts for all GPUs that need it; those of torch are made when all others are done."""
    for of_torch in (False, True):
        wanted: dict[tuple[str, str, JobCut], dict[str, None]] = {}
        for variant in plan.plans:
            for wheel in variant.wheels:
                of_this = (wheel.name == "torch") is of_torch
                if of_this and (gpu := variant.cut_for) and (cut := cut_of(plan, variant, wheel, cuts)):
                    wanted.setdefault((wheel.file.key, wheel.file.filename, cut), {})[gpu] = None
        for (source, filename, options), gpus in wanted.items():
            yield CutForGpus(source, filename, tuple(gpus), options)


def pack_of(plan: WheelPlan, variant: VariantPlan, cuts: Cuts | None = None) -> PackVariant:
    """The job that packs one variant; of a split, after all cuts but torch's."""
    wheels = tuple(
        PackedWheel(
            filename=wheel.file.filename,
            size=wheel.size,
            source=wheel.file.key,
            url=without_login(wheel.file.url) if wheel.file.local_path is None else "",
            required_by=wheel.required_by,
            cut=cut_of(plan, variant, wheel, cuts or {}),
            why=WHY_NOT_CUT.get(wheel.treatment, ""),
        )
        for wheel in variant.wheels
    )
    return PackVariant(describe_variant(variant, plan.options), wheels)


def describe_variant(variant: VariantPlan, options: WheelOptions) -> WheelhouseDescription:
    """What the manifest says of a variant."""
    details: dict[str, object] = {"options": options.to_json(), "gives": variant.gives}
    if variant.without_gpu:
        details["without_gpu"] = True
    gpu = variant.variant.gpu
    packs = (gpu.capability.sm,) if options.cut.split and gpu else ()
    requested = tuple(
        f"{name}[{','.join(sorted((*extras, *packs)))}]" if extras or packs else name
        for name, extras in {"torch": (), **options.companion_extras}.items()
    )
    return WheelhouseDescription.of(variant.variant, WHEEL, details, build=variant.label, requested=requested)


WHY_NOT_CUT = {Treatment.NEEDS_NVIDIA_OPTION: "NVIDIA's licence: cut only with --nvidia"}


def cut_of(plan: WheelPlan, variant: VariantPlan, wheel: PlannedWheel, cuts: Cuts) -> JobCut | None:
    """How a wheel of a variant is cut; None where it stays as it is."""
    gpu = variant.cut_for
    if wheel.treatment is not Treatment.CUT or gpu is None:
        return None
    cut = plan.options.cut_for(gpu)
    if cut.policy.split and wheel.name == "torch":
        cut = msgspec.structs.replace(cut, also=tuple(_with_packs(plan, variant, gpu, cuts)))
    return cut


def _with_packs(plan: WheelPlan, variant: VariantPlan, gpu: str, cuts: Cuts) -> Iterator[str]:
    """The libraries of NVIDIA's that were split: the extras of torch bring their packs too."""
    for wheel in sorted(variant.wheels, key=lambda one: one.name):
        cut = cut_of(plan, variant, wheel, cuts) if wheel.name.startswith("nvidia-") else None
        job = CutForGpus(wheel.file.key, wheel.file.filename, (gpu,), cut) if cut else None
        if job and (done := cuts.get(job.key_for(gpu))) and done.pack:
            yield wheel.name


def run_plan(plan: WheelPlan, context: JobContext, ledger: Ledger) -> WheelBuildResult:
    """Build every variant of a plan; each is in the ledger, and in its place only when it is whole."""
    began = time.monotonic()
    with ExitStack() as attempts:
        running, ended = {}, {}
        for variant in plan.plans:
            ended[variant.name] = attempts.enter_context(ExitStack())
            attempt = ledger.attempt(
                variant.name, WHEEL, options=plan.options.to_json(), configuration=configuration_of(variant)
            )
            running[variant.name] = ended[variant.name].enter_context(attempt)
        work = _PlanJobs(plan, context, running)
        fetched = work.fetch()
        work.cut()
        packed = []
        for variant in plan.plans:
            job = pack_of(plan, variant, context.cuts)
            packed.append((variant, job, work.pack(variant, job)))
            ended[variant.name].close()  # done, even if the next one fails
        jobs = [(variant, job) for variant, job, _ in packed]
        variants_index = write_index_of(jobs, context) if plan.options.variants else None
    return WheelBuildResult(
        wheelhouses=tuple(wheelhouse for _, _, wheelhouse in packed),
        variants_index=variants_index,
        downloaded=sum(item.downloaded for item in fetched.values()),
        seconds=round(time.monotonic() - began, 2),
    )


def configuration_of(plan: VariantPlan) -> dict[str, object]:
    """What the ledger says of a variant."""
    return {"torch": str(plan.variant.release.version), "build": plan.label, "python": plan.variant.python}


class _PlanJobs:
    """The jobs of one plan, with their stages and rates in the ledger."""

    def __init__(self, plan: WheelPlan, context: JobContext, running: dict[str, Running]) -> None:
        self._plan, self._context, self._running = plan, context, running

    def fetch(self) -> Mapping[str, Fetched]:
        self._stage("fetch")
        self._context.progress.stage(f"Fetching {len(self._plan.files)} wheels")
        began = time.monotonic()
        fetched = fetch_all(fetch_jobs(self._plan), self._context)
        self._measure(FETCH_KEY, sum(item.downloaded for item in fetched.values()), began)
        return fetched

    def cut(self) -> None:
        self._stage("cut")
        began = time.monotonic()
        size = 0
        for job in cut_jobs(self._plan, self._context.cuts):
            sha256 = self._context.digest(job.source, job.filename)
            stock = self._context.locate(sha256, job.filename).stat().st_size
            size += sum(stock for cut in cut_all(job, self._context) if not cut.from_cache)
        self._measure(CUT_KEY, size, began)

    def pack(self, plan: VariantPlan, job: PackVariant) -> Wheelhouse:
        running = self._running[plan.name]
        running.stage = "wheelhouse"
        self._context.progress.stage(f"Writing {plan.name}")
        wheelhouse = pack(job, self._context)
        running.input_bytes, running.output_bytes = wheelhouse.input_bytes, wheelhouse.output_bytes
        running.stage = ""
        return wheelhouse

    def _stage(self, name: str) -> None:
        for running in self._running.values():
            running.stage = name

    def _measure(self, key: str, size: int, began: float) -> None:
        if size > _ENOUGH_BYTES:
            for running in self._running.values():
                running.configuration[key] = round(size / (time.monotonic() - began))


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
