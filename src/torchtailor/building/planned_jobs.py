"""The jobs of a plan as a farm asks for them: each method answers for itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torchtailor.building.base import BuildPlan
from torchtailor.building.farm.store import FarmStore
from torchtailor.building.graph.graph import JobGraph
from torchtailor.building.ledger.rates import Rates
from torchtailor.building.nix.builder import NixOutput
from torchtailor.building.wheel_jobs import JobContext, PackVariant
from torchtailor.catalog import Catalog
from torchtailor.core.room import DiskNeed


@dataclass(frozen=True)
class JobPlace:
    """Where jobs are to run, and what the user asked for."""

    catalog: Catalog
    store: str
    workers: int
    here: bool  # on this machine, so that jobs use its cache
    rates: Rates
    rows: str = ""  # a digest of the user's rows of the catalog
    objects: str = ""  # where compiled files are shared; empty: beside the store
    shards: int | None = None
    prove: bool = False


@dataclass(frozen=True)
class FarmVariant:
    """A variant of a plan, and the output that is its wheelhouse."""

    name: str
    method: str
    key: str  # empty where only some targets are built, which make no wheelhouse
    options: Mapping[str, object]
    configuration: Mapping[str, object]


@dataclass(frozen=True)
class PlannedJobs:
    """The jobs of a plan; what a method does not say is that of one whose jobs put wheelhouses into the store."""

    plan: BuildPlan
    graph: JobGraph
    variants: tuple[FarmVariant, ...]
    objects: str = ""
    compiles: bool = False  # so that workers need one compiler and glibc
    processes: int | None = None  # that one job may start, by --jobs
    named: bool = False  # the plan, as it is shown, names every variant

    def graph_for(self, workers: int) -> JobGraph:
        """The graph for so many workers, whose outputs are the same."""
        return self.graph

    @property
    def collect_seconds(self) -> float:
        """What it takes until every wheelhouse is read, hashed and in its place."""
        return 0.0

    def disk(self, to_run: Collection[str]) -> tuple[DiskNeed, ...]:
        """What these jobs write to each file system of this machine; none where jobs look for themselves."""
        return ()

    def download(self, to_run: Collection[str]) -> int | None:
        """Bytes that these jobs fetch, less where a worker's cache has some; None where sizes are not known."""
        return None

    def costed(self, seconds: float, needs: Collection[DiskNeed]) -> BuildPlan:
        """The plan with the time of its jobs on this place, and with the disk that has the least room for them."""
        return self.plan

    def send(self) -> None:
        """Put what jobs start from into the store, before the first one."""

    def take(self, variant: FarmVariant, store: FarmStore) -> NixOutput | None:
        """Put what a variant is into its place; None where that is a wheelhouse of the store."""
        return None

    def finish(self, made: Collection[str], restored: Callable[[Sequence[PackVariant]], JobContext]) -> Path | None:
        """Write what belongs to all variants that were made, such as an index; `restored` takes what they were packed
        of from the store."""
        return None


@runtime_checkable
class FarmedPlan(BuildPlan, Protocol):
    """A plan whose jobs can run on many machines."""

    def jobs_on(self, place: JobPlace) -> PlannedJobs:
        """The jobs of this plan; writes nothing."""
