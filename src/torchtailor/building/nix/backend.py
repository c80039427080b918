"""The Nix backend: recipes built with Flox or Nix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from torchtailor.building.base import OnFarms, Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.choose import VariantChoice
from torchtailor.building.graph.here import run_each
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.nix.builder import NEEDED_BYTES, NixOutput, run_nix_job
from torchtailor.building.nix.job import NixJob, NixJobDocument, plan_nix
from torchtailor.building.shown import Line
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.documents import Seconds, document
from torchtailor.core.format import counted, human_bytes, human_seconds
from torchtailor.core.progress import Progress
from torchtailor.nix.write import recipe_releases
from torchtailor.wheelhouse.wheelhouse import Wheelhouse

if TYPE_CHECKING:
    from torchtailor.building.planned_jobs import JobPlace, PlannedJobs


@dataclass(frozen=True, slots=True)
class NixOptions:
    """The options of a build with Nix."""

    tree: Path | None = None  # the recipes; None: those of the working directory, else they are written below `out`
    cores: int | None = None  # compilers at once; None: as many as fit into memory


@dataclass(frozen=True)
class NixPlan:
    """The recipes to build, one after another."""

    variants: tuple[Variant, ...]
    jobs: tuple[NixJob, ...]
    out: Path
    unavailable: Unavailable = field(default_factory=dict)
    places: tuple[Path, ...] = ()  # Nix itself replaces no more than its own links

    def lines(self, *, dry_run: bool) -> Iterator[Line]:
        for job in self.jobs if dry_run else ():
            yield Line(f"{job.name}: {' '.join(job.command)}", result=True, whole=True)

    def jobs_on(self, place: JobPlace) -> PlannedJobs:
        """The jobs of this plan on many machines."""
        from torchtailor.building.nix.derivations import nix_jobs_on

        return nix_jobs_on(self, place)

    @property
    def cost_text(self) -> str:
        recipes = counted(len(self.jobs), "recipe")
        return f"{recipes}; a build of PyTorch takes hours and {human_bytes(NEEDED_BYTES)} of disk."

    @property
    def document(self) -> NixPlanDocument:
        return document(NixPlanDocument, self, unavailable=unavailable_rows(self.unavailable))


class NixPlanDocument(Struct):
    """The recipes to build, one after another."""

    jobs: tuple[NixJobDocument, ...]
    unavailable: tuple[UnavailableVariant, ...]


@dataclass(frozen=True)
class NixBuildResult:
    """What a build with Nix gave; no wheels."""

    outputs: tuple[NixOutput, ...]
    seconds: float
    wheelhouses: tuple[Wheelhouse, ...] = ()

    def lines(self) -> Iterator[Line]:
        return output_lines(self.outputs)

    def document(self, unavailable: Unavailable) -> NixBuildDocument:
        return document(NixBuildDocument, self, unavailable=unavailable_rows(unavailable))


def output_lines(outputs: Iterable[NixOutput]) -> Iterator[Line]:
    """What Nix has built, with the links to it."""
    for item in outputs:
        took = f"{human_bytes(item.output_bytes)} in {human_seconds(item.seconds)}"
        yield Line(f"{item.link}: {took}", result=True, whole=True)


class NixBuildDocument(Struct):
    """What a build with Nix gave."""

    outputs: tuple[NixOutput, ...]
    seconds: Seconds
    unavailable: tuple[UnavailableVariant, ...]


class NixBackend:
    """Builds variants with Nix."""

    options_type: ClassVar[type[NixOptions]] = NixOptions
    on_farms: ClassVar[OnFarms | None] = OnFarms(
        proof=("--prove is for wheels.", "Omit it, and run `torchtailor verify dist/result-NAME`.")
    )

    def __init__(self, catalog: Catalog, options: NixOptions, *, ledger: Ledger | None = None) -> None:
        self._catalog, self._options, self._ledger = catalog, options, ledger or Ledger()

    @property
    def glob_release(self) -> str | None:
        """The newest release that has recipes."""
        return recipe_releases(self._catalog)[-1]

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> NixPlan:
        variants = tuple(choice.variant for choice in choices)
        return NixPlan(variants, tuple(self._job(variant, out, write=False) for variant in variants), out)

    def run(self, plan: NixPlan, progress: Progress) -> NixBuildResult:
        began = time.monotonic()
        outputs = run_each(partial(self._build, variant, plan.out, progress) for variant in plan.variants)
        return NixBuildResult(outputs, round(time.monotonic() - began, 2))

    def _build(self, variant: Variant, out: Path, progress: Progress) -> NixOutput:
        job = self._job(variant, out, write=True)
        progress.stage(f"Building {job.name} with {job.tool}, {counted(job.cores, 'job')}; logs in {job.logs}")
        return run_nix_job(job, progress=progress, ledger=self._ledger, release=variant.release.recipe_name)

    def _job(self, variant: Variant, out: Path, *, write: bool) -> NixJob:
        return plan_nix(self._catalog, variant, out, tree=self._options.tree, cores=self._options.cores, write=write)
