"""The source backend: PyTorch compiled for variants; several GPUs of one ISA come out of one library."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from torchtailor.building.base import OnFarms, Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.choose import VariantChoice
from torchtailor.building.graph.here import run_each
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.shown import Shown
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.plan import MatrixPlan, MatrixPlanDocument, plan_matrix
from torchtailor.building.source.runner import (
    PlannedSourceBuild,
    PlannedSourceDocument,
    SourceBuild,
    SourceBuilder,
    SourceBuildRow,
)
from torchtailor.building.source.shown import source_build_lines, source_plan_lines
from torchtailor.building.source.tables import load_tables
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.documents import Seconds, document
from torchtailor.core.format import counted, human_seconds
from torchtailor.core.progress import Progress
from torchtailor.wheelhouse.wheelhouse import Wheelhouse

if TYPE_CHECKING:
    from torchtailor.building.planned_jobs import JobPlace, PlannedJobs


@dataclass(frozen=True)
class SourcePlan:
    """The builds to run, one after another, and what they cost."""

    matrix: MatrixPlan
    builders: tuple[SourceBuilder, ...]
    out: Path
    unavailable: Unavailable = field(default_factory=dict)

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(variant for builder in self.builders for variant in builder.variants)

    @property
    def places(self) -> tuple[Path, ...]:
        made = (builder for builder in self.builders if not builder.options.targets)
        return tuple(self.out / variant.unique_name for builder in made for variant in builder.variants)

    def lines(self, *, dry_run: bool) -> Iterator[Shown]:
        return source_plan_lines(self, dry_run=dry_run)

    def jobs_on(self, place: JobPlace) -> PlannedJobs:
        """The jobs of this plan on many machines."""
        from torchtailor.building.source.graph import source_jobs_on

        return source_jobs_on(self, place)

    @property
    def cost_text(self) -> str:
        return self.matrix.cost_text

    @property
    def here_text(self) -> str:
        """How long that is with the cores of this machine."""
        cores = self.builds[0].preflight.capacity.cores
        used = min(cores, self.builders[0].options.jobs or cores)
        return f"With {counted(used, 'core')} here: about {human_seconds(self.matrix.cost.shared * 3600 / used)}."

    @cached_property
    def builds(self) -> tuple[PlannedSourceBuild, ...]:
        """Each build with the checks of this machine."""
        return tuple(builder.plan() for builder in self.builders)

    @property
    def document(self) -> SourcePlanDocument:
        builds = tuple(build.document for build in self.builds)
        return SourcePlanDocument(self.matrix.document, builds, unavailable_rows(self.unavailable))


class SourcePlanDocument(Struct):
    """What is compiled, and what each build would do on this machine."""

    plan: MatrixPlanDocument
    builds: tuple[PlannedSourceDocument, ...]
    unavailable: list[UnavailableVariant]


@dataclass(frozen=True)
class SourceBuildResult:
    """What the builds from source gave."""

    builds: tuple[SourceBuild, ...]
    seconds: float

    @property
    def wheelhouses(self) -> tuple[Wheelhouse, ...]:
        return tuple(wheelhouse for build in self.builds for wheelhouse in build.wheelhouses)

    def lines(self) -> Iterator[Shown]:
        return (line for build in self.builds for line in source_build_lines(build))

    def document(self, unavailable: Unavailable) -> SourceBuildDocument:
        return document(SourceBuildDocument, self, unavailable=unavailable_rows(unavailable))


class SourceBuildDocument(Struct):
    """What the builds from source gave."""

    builds: tuple[SourceBuildRow, ...]
    seconds: Seconds
    unavailable: list[UnavailableVariant]


class SourceBackend:
    """Builds variants from source."""

    options_type: ClassVar[type[SourceOptions]] = SourceOptions
    on_farms: ClassVar[OnFarms | None] = OnFarms(
        shards=True, proof=("A build from source is always proven.", "Omit --prove.")
    )
    glob_release: str | None = None

    def __init__(self, catalog: Catalog, options: SourceOptions, *, ledger: Ledger | None = None) -> None:
        self._catalog, self._options, self._ledger = catalog, options, ledger or Ledger()

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> SourcePlan:
        variants = [choice.variant for choice in choices]
        matrix = plan_matrix(self._catalog, load_tables(), variants, all_gpus=self._options.all_gpus)
        requests = [SourceRequest(group.variant, out, group.gpus, self._options) for group in matrix.groups]
        builders = tuple(SourceBuilder(self._catalog, request, ledger=self._ledger) for request in requests)
        return SourcePlan(matrix, builders, out)

    def run(self, plan: SourcePlan, progress: Progress) -> SourceBuildResult:
        began = time.monotonic()
        builds = run_each(partial(_build, builder, progress) for builder in plan.builders)
        return SourceBuildResult(builds, round(time.monotonic() - began, 2))


def _build(builder: SourceBuilder, progress: Progress) -> SourceBuild:
    build = builder.build(progress)
    progress.stage(f"{build.variant} is built; its log is {build.log}")
    return build
