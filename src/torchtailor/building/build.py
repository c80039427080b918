"""Builds variants with any method: `build("sm90-avx512", nvidia=True)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torchtailor.building.base import Backend, BuildPlan, BuildResult, load_backend
from torchtailor.building.choose import VariantChoice, choose
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.catalog import WHEEL, Catalog, load_catalog
from torchtailor.catalog.variants.select import Names, is_glob, unmatched
from torchtailor.core.disk import check_output_folder
from torchtailor.core.errors import UsageError
from torchtailor.core.progress import Progress
from torchtailor.tailoring.choices import CHOICES, with_choices
from torchtailor.wheelhouse.wheelhouse import check_place


@dataclass(frozen=True)
class PlannedBuild:
    """A plan and the backend that carries it out."""

    plan: BuildPlan
    backend: Backend[Any]

    def run(self, progress: Progress | None = None) -> BuildResult:
        return self.backend.run(self.plan, progress or Progress())


def build(
    *selectors: str,
    method: str = WHEEL,
    options: object | None = None,
    everything: bool = False,
    release: Names = None,
    python: Names = None,
    cuda: str | None = None,
    out: Path | str = "dist",
    progress: Progress | None = None,
    catalog: Catalog | None = None,
    ledger: Ledger | None = None,
    **changes: Any,
) -> BuildResult:
    """Build the variants that the selectors name (names or globs; none: this machine's own) into `out`.

    `cuda` leaves out the builds of other CUDA toolkits. Of a glob, what is available is built; the plan lists the rest.
    `options` is the method's own type (WheelOptions, SourceOptions, NixOptions); `changes` are single fields of it.
    """
    planned = plan_build(
        *selectors,
        method=method,
        options=options,
        everything=everything,
        release=release,
        python=python,
        cuda=cuda,
        out=out,
        catalog=catalog,
        ledger=ledger,
        **changes,
    )
    return planned.run(progress)


def plan_build(
    *selectors: str,
    method: str = WHEEL,
    options: object | None = None,
    everything: bool = False,
    release: Names = None,
    python: Names = None,
    cuda: str | None = None,
    out: Path | str = "dist",
    catalog: Catalog | None = None,
    ledger: Ledger | None = None,
    **changes: Any,
) -> PlannedBuild:
    """The plan of `build` with the same arguments; nothing is built before its `run`."""
    catalog = catalog or load_catalog()
    backend = make_backend(catalog, method, options, changes, ledger=ledger)
    choices = choose(
        catalog,
        selectors,
        everything=everything,
        release=release,
        python=python,
        cuda=cuda,
        method=method,
        glob_release=backend.glob_release,
        without_gpu=wants_no_gpu(options, changes),
    )
    planned = plan_choices(backend, choices, out)
    if nothing := unmatched([choice.variant for choice in choices], [*filter(is_glob, selectors)]):
        why = f"It matches no variant that can be built with --via {method}."
        plan: Any = planned.plan
        return replace(planned, plan=replace(plan, unavailable={**plan.unavailable, why: nothing}))
    return planned


def plan_choices(backend: Backend[Any], choices: Sequence[VariantChoice], out: Path | str) -> PlannedBuild:
    """The plan of variants that were chosen already; an `out` that nothing can be written to is refused first."""
    folder = Path(out)
    check_output_folder(folder)
    planned = PlannedBuild(backend.plan(choices, folder), backend)
    for place in planned.plan.places:
        check_place(place)
    return planned


def wants_no_gpu(options: object | None, changes: Mapping[str, Any]) -> bool:
    """Whether a variant without a GPU is meant, whatever this machine has."""
    return bool(changes.get("without_gpu", getattr(options, "without_gpu", False)))


def make_backend(
    catalog: Catalog,
    method: str,
    options: object | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    ledger: Ledger | None = None,
) -> Backend[Any]:
    """The backend of a method with its options: those given or the defaults, with single fields changed."""
    backend = load_backend(catalog.method(method))
    kind = backend.options_type
    if options is not None and not isinstance(options, kind):
        raise UsageError(f"{type(options).__name__} are not options of the method {method}.", f"Give {kind.__name__}.")
    own = [field.name for field in fields(kind)]
    known = [*own, *CHOICES] if "cut" in own else own
    if unknown := sorted(set(changes or {}) - set(known)):
        raise UsageError(f"The method {method} has no option {unknown[0]!r}.", f"Its options are {', '.join(known)}.")
    chosen: Any = kind() if options is None else options
    given = changes or {}
    chosen = replace(chosen, **{name: value for name, value in given.items() if name in own})
    if of_cut := {name: value for name, value in given.items() if name not in own}:
        chosen = replace(chosen, cut=with_choices(chosen.cut, **of_cut))
    return backend(catalog, chosen, ledger=ledger)
