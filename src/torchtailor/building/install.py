"""Builds one variant from official wheels and installs it: `install("sm90-avx512", into=".venv")`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchtailor.advise.host.cpu import detect_cpu
from torchtailor.advise.host.probe import LiveProbe
from torchtailor.building.build import PlannedBuild, make_backend, plan_choices, wants_no_gpu
from torchtailor.building.choose import VariantChoice, choose
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import WheelPlanDocument
from torchtailor.catalog import WHEEL, Catalog, load_catalog
from torchtailor.core.documents import document
from torchtailor.core.errors import UsageError
from torchtailor.core.progress import Progress
from torchtailor.core.pythons import python_of_environment
from torchtailor.fetch.target import Target
from torchtailor.wheelhouse.install import (
    TorchInstallation,
    check_environment,
    find_environment,
    install_wheelhouse,
    make_environment,
)
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, WheelhouseDocument


class InstallPlanDocument(WheelPlanDocument, kw_only=True):
    """What is built for an environment, and what that needs."""

    environment: Path


class InstallDocument(Struct):
    """What was built, and where it was installed."""

    wheelhouse: WheelhouseDocument
    installed: TorchInstallation


@dataclass(frozen=True)
class InstallResult:
    """What was built, and where it was installed."""

    wheelhouse: Wheelhouse
    installed: TorchInstallation


@dataclass(frozen=True)
class PlannedInstall:
    """A build of one variant, and the environment for it."""

    build: PlannedBuild
    environment: Path

    @property
    def document(self) -> InstallPlanDocument:
        return document(InstallPlanDocument, self.build.plan.document, environment=self.environment)

    def run(self, progress: Progress | None = None) -> InstallResult:
        """Build, create the environment if needed, install, and test the import; refuses before it builds."""
        (variant,) = self.build.plan.variants
        check_environment(self.environment, Target(variant.python, variant.arch))
        (wheelhouse,) = self.build.run(progress).wheelhouses
        make_environment(self.environment, wheelhouse.target)
        return InstallResult(wheelhouse, install_wheelhouse(wheelhouse, self.environment))


def install(
    variant: str | None = None,
    *,
    into: Path | str | None = None,
    options: WheelOptions | None = None,
    release: str | None = None,
    python: str | None = None,
    out: Path | str = "dist",
    progress: Progress | None = None,
    catalog: Catalog | None = None,
    ledger: Ledger | None = None,
    **changes: Any,
) -> InstallResult:
    """Build a variant (none: this machine's own) into `out`, and install it into an environment (none: the active one).

    The environment is created if it does not exist. `changes` are single fields of the options.
    """
    planned = plan_install(
        variant,
        into=into,
        options=options,
        release=release,
        python=python,
        out=out,
        catalog=catalog,
        ledger=ledger,
        **changes,
    )
    return planned.run(progress)


def plan_install(
    variant: str | None = None,
    *,
    into: Path | str | None = None,
    options: WheelOptions | None = None,
    release: str | None = None,
    python: str | None = None,
    out: Path | str = "dist",
    catalog: Catalog | None = None,
    ledger: Ledger | None = None,
    **changes: Any,
) -> PlannedInstall:
    """The plan of `install` with the same arguments; nothing is built before its `run`.

    Without a Python, it is that of the environment, where there is one already.
    """
    environment = find_environment(Path(into) if into is not None else None)
    catalog = catalog or load_catalog()
    backend = make_backend(catalog, WHEEL, options, changes, ledger=ledger)
    wanted = python or python_of_environment(environment)
    without_gpu = wants_no_gpu(options, changes)
    choices = choose(catalog, [variant] if variant else [], release=release, python=wanted, without_gpu=without_gpu)
    if len(choices) > 1:
        names = ", ".join(choice.variant.short_name for choice in choices[:4])
        raise UsageError(
            f"{variant!r} matches {len(choices)} variants ({names}{', ...' if len(choices) > 4 else ''}); "
            "an environment holds one.",
            "Give one of these names.",
        )
    here = [_for_this_cpu(choice) for choice in choices]
    return PlannedInstall(plan_choices(backend, here, out), environment)


def _for_this_cpu(choice: VariantChoice) -> VariantChoice:
    """Without the older releases whose wheels this machine's CPU does not load: it has to import what is installed."""
    if not choice.fallbacks:
        return choice
    cpu = detect_cpu(LiveProbe())
    loaded = [one for one in choice.fallbacks if not one.release.missing_for_wheel(one.arch, cpu.flags)]
    return replace(choice, fallbacks=tuple(loaded))
