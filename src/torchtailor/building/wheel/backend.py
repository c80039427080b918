"""The wheel backend: official wheels, cut to one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from torchtailor.building.base import OnFarms
from torchtailor.building.choose import VariantChoice
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.ledger.rates import known_rates
from torchtailor.building.wheel.builder import WheelBuildResult, run_plan
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import Planner, WheelPlan
from torchtailor.building.wheel_jobs import JobContext
from torchtailor.catalog import Catalog
from torchtailor.core.progress import Progress
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder


class WheelBackend:
    """Builds variants from official wheels."""

    options_type: ClassVar[type[WheelOptions]] = WheelOptions
    on_farms: ClassVar[OnFarms | None] = OnFarms()
    glob_release: str | None = None

    def __init__(
        self, catalog: Catalog, options: WheelOptions, *, ledger: Ledger | None = None, finder: Finder | None = None
    ) -> None:
        self._catalog, self._options = catalog, options.resolved(catalog)
        self._ledger = ledger or Ledger()
        self._finder = finder or Finder.of(options)

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> WheelPlan:
        return Planner(self._catalog, self._finder, self._options, known_rates(self._ledger)).plan(choices, out)

    def run(self, plan: WheelPlan, progress: Progress) -> WheelBuildResult:
        plan.check()
        cache = self._finder.cache
        downloader = Downloader(self._finder.client, cache)
        return run_plan(plan, JobContext(self._catalog, cache, downloader, plan.out, progress), self._ledger)
