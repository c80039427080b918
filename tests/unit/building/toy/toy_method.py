"""A build method that writes the name of a variant into a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from torchtailor.building.base import OnFarms, Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.choose import VariantChoice
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.progress import Progress
from torchtailor.wheelhouse.wheelhouse import Wheelhouse


@dataclass(frozen=True)
class ToyOptions:
    loud: bool = False


@dataclass(frozen=True)
class ToyPlan:
    variants: tuple[Variant, ...]
    out: Path
    unavailable: Unavailable = field(default_factory=dict)
    places: tuple[Path, ...] = ()
    cost_text: str = "It costs nothing."

    @property
    def document(self) -> ToyPlanDocument:
        return ToyPlanDocument([variant.unique_name for variant in self.variants])


class ToyPlanDocument(Struct):
    variants: list[str]


@dataclass(frozen=True)
class ToyResult:
    written: tuple[str, ...]
    wheelhouses: tuple[Wheelhouse, ...] = ()
    seconds: float = 0.0

    def document(self, unavailable: Unavailable) -> ToyDocument:
        return ToyDocument(self.written, unavailable_rows(unavailable))


class ToyDocument(Struct):
    written: tuple[str, ...]
    unavailable: list[UnavailableVariant]


class ToyBackend:
    options_type: ClassVar[type[ToyOptions]] = ToyOptions
    on_farms: ClassVar[OnFarms | None] = None
    glob_release: str | None = None

    def __init__(self, catalog: Catalog, options: ToyOptions, *, ledger: Ledger | None = None) -> None:
        self._options, self._ledger = options, ledger or Ledger()

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> ToyPlan:
        return ToyPlan(tuple(choice.variant for choice in choices), out)

    def run(self, plan: ToyPlan, progress: Progress) -> ToyResult:
        plan.out.mkdir(parents=True, exist_ok=True)
        for variant in plan.variants:
            with self._ledger.attempt(variant.unique_name, "toy"):
                text = variant.short_name.upper() if self._options.loud else variant.short_name
                (plan.out / f"{variant.unique_name}.toy").write_text(text)
        return ToyResult(tuple(variant.unique_name for variant in plan.variants))
