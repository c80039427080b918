"""A build from official wheels on many machines: its jobs, and what a farm asks about them.

What is on one file system is hard-linked: a wheel that is fetched into the cache is in the store and in -o for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.building.graph.graph import JobGraph
from torchtailor.building.planned_jobs import FarmVariant, JobPlace, PlannedJobs
from torchtailor.building.wheel.builder import configuration_of, write_index_of
from torchtailor.building.wheel.graph import COPIED, SENT, Away, pack_of, wheel_graph, with_hashes
from torchtailor.building.wheel.plan import SPARE_DISK, WheelPlan
from torchtailor.building.wheel_jobs import JobContext, PackVariant
from torchtailor.catalog import WHEEL
from torchtailor.core.disk import cache_folder
from torchtailor.core.documents import plain
from torchtailor.core.errors import UsageError
from torchtailor.core.room import DiskNeed, device_of, disk_needs
from torchtailor.core.store import is_local, store_folder


def wheel_jobs_on(plan: WheelPlan, place: JobPlace) -> WheelJobs:
    """The jobs of a plan; local wheels are hashed for it."""
    if plan.options.cut.split:
        raise UsageError(
            "--split builds on one machine: which packs torch asks for is known when all other wheels are cut.",
            "Omit --on, or --split.",
        )
    plan = with_hashes(plan)
    options = plain(plan.options.document)
    variants = tuple(
        FarmVariant(variant.name, WHEEL, pack_of(plan, variant).gives[0], options, configuration_of(variant))
        for variant in plan.plans
    )
    graph = _graph(plan, place, place.workers)
    return WheelJobs(plan=plan, graph=graph, variants=variants, place=place, named=True)


def _graph(plan: WheelPlan, place: JobPlace, workers: int) -> JobGraph:
    away = Away(not place.here, not is_local(place.store))
    return wheel_graph(plan, rates=place.rates, workers=workers, prove=place.prove, rows=place.rows, away=away)


@dataclass(frozen=True, kw_only=True)
class WheelJobs(PlannedJobs):
    """The jobs of a build from official wheels."""

    plan: WheelPlan
    place: JobPlace

    def graph_for(self, workers: int) -> JobGraph:
        """More workers cut in more pieces."""
        return _graph(self.plan, self.place, workers)

    @property
    def collect_seconds(self) -> float:
        size = sum(variant.output_size for variant in self.plan.plans)
        return size / COPIED + (0.0 if is_local(self.place.store) else size / SENT)

    def disk(self, to_run: Collection[str]) -> tuple[DiskNeed, ...]:
        return needs_on(self.plan, to_run, self.place.store, here=self.place.here)

    def download(self, to_run: Collection[str]) -> int:
        sizes = {file.key: file.size or 0 for file in self.plan.files if file.local_path is None}
        return sum(size for key, size in sizes.items() if key in to_run)

    def costed(self, seconds: float, needs: Collection[DiskNeed]) -> WheelPlan:
        cost = self.plan.cost
        return replace(self.plan, cost=replace(cost, seconds=seconds, needs=tuple(needs) or cost.needs))

    def finish(self, made: Collection[str], restored: Callable[[Sequence[PackVariant]], JobContext]) -> Path | None:
        """The index of wheel variants."""
        packs = [(variant, pack_of(self.plan, variant)) for variant in self.plan.plans if variant.name in made]
        if not self.plan.options.variants or not packs:
            return None
        return write_index_of(packs, restored([job for _, job in packs]))


def needs_on(plan: WheelPlan, to_run: Collection[str], store: str, *, here: bool) -> tuple[DiskNeed, ...]:
    """What the jobs `to_run` and the wheelhouses take; `here`: the jobs run on this machine, and use its cache."""
    wheels = {wheel.file.key: wheel for variant in plan.plans for wheel in variant.wheels}
    fetched = [wheel for key, wheel in wheels.items() if key in to_run]
    cuts = bool(to_run) and plan.cost.made > 0
    made, scratch = (plan.cost.made, plan.cost.scratch) if cuts else (0, 0)
    cache, folder = cache_folder(), store_folder(store)
    sizes: list[tuple[Path, int]] = []
    if here and to_run:
        sizes.append((cache, sum(wheel.download for wheel in fetched) + made + scratch + SPARE_DISK))
    if folder and to_run and not (here and device_of(folder) == device_of(cache)):
        sizes.append((folder, sum(wheel.size for wheel in fetched) + made + SPARE_DISK))
    if folder is None or device_of(folder) != device_of(plan.out):
        sizes.append((plan.out, sum(variant.output_size for variant in plan.plans)))
    return disk_needs(sizes)
