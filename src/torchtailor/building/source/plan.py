"""The plan of builds from source: what is compiled once for several variants, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from torchtailor.building.source.tables import CostRow, Tables
from torchtailor.catalog import SOURCE, Capability, Catalog
from torchtailor.catalog.variants import Variant, coverage, matrix_of
from torchtailor.core.format import counted


@dataclass(frozen=True)
class VariantGroup:
    """Variants that one build makes: all of one ISA, release, CUDA and Python."""

    variant: Variant  # the one that the build is named after
    gpus: tuple[Capability, ...]  # empty where the library is for one GPU, or for none

    @property
    def variants(self) -> int:
        return max(1, len(self.gpus))


@dataclass(frozen=True)
class SourceCost:
    """Core-hours of a set of variants."""

    naive: float
    shared: float

    @property
    def saved(self) -> float:
        return 1 - self.shared / self.naive if self.naive else 0.0


@dataclass(frozen=True)
class MatrixPlan:
    """What will be built, and what it costs."""

    groups: tuple[VariantGroup, ...]
    cost: SourceCost

    @property
    def variants(self) -> int:
        return sum(group.variants for group in self.groups)

    @property
    def cost_text(self) -> str:
        if self.variants == 1:
            return f"About {self.cost.naive:.1f} core-hours."
        each = f"{counted(self.variants, 'variant')} one by one: {self.cost.naive:.0f} core-hours. "
        return f"{each}Shared ({len(self.groups)} builds): {self.cost.shared:.0f} core-hours."

    @property
    def document(self) -> MatrixPlanDocument:
        return MatrixPlanDocument(
            tuple(VariantGroupDocument(group.variant.unique_name, group.gpus) for group in self.groups),
            self.variants,
            round(self.cost.naive, 1),
            round(self.cost.shared, 1),
        )


class VariantGroupDocument(Struct):
    """Variants that one build makes."""

    variant: Annotated[str, Meta(description="the one that the build is named after")]
    gpus: Annotated[tuple[Capability, ...], Meta(description="empty where the library is for one GPU, or for none")]


class MatrixPlanDocument(Struct):
    """What is compiled once for several variants."""

    groups: tuple[VariantGroupDocument, ...]
    variants: int
    core_hours_naive: Annotated[float, Meta(description="one by one")]
    core_hours_shared: float


def plan_matrix(catalog: Catalog, tables: Tables, variants: Sequence[Variant], *, all_gpus: bool = False) -> MatrixPlan:
    """Group variants that one library can serve; with `all_gpus`, for every GPU of their builds."""
    wanted = [*variants]
    if all_gpus:
        wanted = [other for variant in variants for other in _all_of(catalog, variant)]
    together: dict[tuple[str, str, str, str], list[Variant]] = {}
    for variant in {item.unique_name: item for item in wanted}.values():
        key = (variant.release.name, variant.build.label, variant.isa.name, variant.python)
        together.setdefault(key, []).append(variant)
    groups = tuple(_group(members) for members in together.values())
    return MatrixPlan(groups, matrix_cost(tables.cost, wanted))


def matrix_cost(row: CostRow, variants: Sequence[Variant]) -> SourceCost:
    """Naively every variant compiles everything. Shared, host code is compiled once per ISA, of which each further
    toolkit and Python compiles its own part again, and device code once per GPU.

    Host objects depend on the ISA alone and device objects on the GPU alone, so ccache shares the former between
    toolkits, and the latter between the ISAs of one architecture; x86 and ARM each compile their own.
    """
    distinct = {variant.unique_name: variant for variant in variants}.values()
    with_gpu = [variant for variant in distinct if variant.gpu]
    gpu_hours = row.device_core_hours + row.toolkit_core_hours
    naive = len(distinct) * (row.host_core_hours + row.link_core_hours) + len(with_gpu) * gpu_hours
    isas = {(item.release.name, item.isa.name) for item in distinct}
    builds = {(item.release.name, item.isa.name, item.build.label): item.gpu is not None for item in distinct}
    devices = {(item.release.name, item.build.label, item.arch, item.gpu.capability) for item in with_gpu if item.gpu}
    pythons = {(item.release.name, item.isa.name, item.build.label, item.python) for item in distinct}
    shared = len(isas) * row.host_core_hours + len(builds) * row.link_core_hours
    shared += len(devices) * row.device_core_hours + sum(builds.values()) * row.toolkit_core_hours
    shared += (len(pythons) - len(isas)) * row.python_core_hours
    return SourceCost(naive, shared + len(with_gpu) * row.cut_core_hours)


def _all_of(catalog: Catalog, variant: Variant) -> list[Variant]:
    return [
        other
        for other in matrix_of(catalog).variants(variant.release_name, variant.python)
        if other.isa == variant.isa
        and other.build.label == variant.build.label
        and coverage(catalog, other, SOURCE).available
    ]


def _group(members: list[Variant]) -> VariantGroup:
    """Configured for the newest GPU: what only older ones lack is built, and cut from their wheels."""
    gpus = sorted({member.gpu.capability for member in members if member.gpu})
    newest = max(members, key=lambda member: member.gpu.capability if member.gpu else Capability(0, 0))
    return VariantGroup(newest, tuple(gpus) if len(gpus) > 1 else ())
