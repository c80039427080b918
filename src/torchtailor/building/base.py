"""What every build method has in common: it plans variants, shows the plan, and carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, cast

from msgspec import Meta, Struct

from torchtailor.building.choose import VariantChoice
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.catalog import Catalog, Method
from torchtailor.catalog.variants import Variant
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.progress import Progress
from torchtailor.wheelhouse.wheelhouse import Wheelhouse

# What was selected and cannot be built, by the reason: variants of a glob, and alternatives that match none.
Unavailable = Mapping[str, tuple[str, ...]]


class UnavailableVariant(Struct):
    """What was selected and cannot be built."""

    variant: Annotated[str, Meta(description="a variant of a glob, or an alternative of its braces that matches none")]
    reason: str


def unavailable_rows(unavailable: Unavailable) -> list[UnavailableVariant]:
    """One by one, for the documents of plans and results."""
    return [UnavailableVariant(name, reason) for reason, names in unavailable.items() for name in names]


class BuildPlan(Protocol):
    """What will be built, and what it costs; nothing was downloaded or written for it."""

    @property
    def variants(self) -> tuple[Variant, ...]: ...

    @property
    def out(self) -> Path: ...

    @property
    def unavailable(self) -> Unavailable: ...

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders that the result replaces."""

    @property
    def cost_text(self) -> str:
        """Download, disk, memory and time in a sentence."""

    @property
    def document(self) -> Struct:
        """What `--dry-run --json` prints."""


class BuildResult(Protocol):
    """What a build gave; each method's own result has more."""

    @property
    def wheelhouses(self) -> tuple[Wheelhouse, ...]:
        """The wheelhouses to install from; none where the method does not make wheels."""

    @property
    def seconds(self) -> float: ...

    def document(self, unavailable: Unavailable) -> Struct:
        """What `--json` prints, with what of the plan cannot be built."""


@dataclass(frozen=True)
class OnFarms:
    """What of the options of `build --on` a method has."""

    shards: bool = False  # its jobs are cut into shards
    proof: tuple[str, str] | None = None  # why --prove is refused, and what to do


PlanT = TypeVar("PlanT", bound=BuildPlan)


class Backend(Protocol[PlanT]):
    """One build method."""

    options_type: ClassVar[type]
    """A frozen dataclass with the options of this method."""

    on_farms: ClassVar[OnFarms | None]
    """What it has of a farm's options; None: it builds on one machine."""

    def __init__(self, catalog: Catalog, options: Any, *, ledger: Ledger | None = None) -> None: ...

    @property
    def glob_release(self) -> str | None:
        """The release in which a glob is expanded where none is given; None: the newest."""

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> PlanT:
        """Plan the variants; downloads metadata at most, and writes nothing below `out`."""

    def run(self, plan: PlanT, progress: Progress) -> BuildResult:
        """Carry a plan out; every attempt is in the ledger, and output is in its place only when it is whole."""


def load_backend(method: Method) -> type[Backend[Any]]:
    """The backend of a method; only that of the method that is used is imported."""
    module, _, name = method.backend.partition(":")
    try:
        return cast("type[Backend[Any]]", getattr(import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            f"The method {method.name} cannot be used: {method.backend} is not there ({error}).",
            "Install the package that has it.",
        ) from error
