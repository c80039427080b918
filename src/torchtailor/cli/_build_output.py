"""Plans and results of builds as people read them: a printer for each build method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchtailor.catalog.methods import NIX, SOURCE, WHEEL
from torchtailor.cli import ui
from torchtailor.core.format import counted

if TYPE_CHECKING:
    from pathlib import Path

    from torchtailor.building.base import BuildPlan, BuildResult, Unavailable
    from torchtailor.building.nix.backend import NixBuildResult, NixPlan
    from torchtailor.building.nix.builder import NixOutput
    from torchtailor.building.source.backend import SourceBuildResult, SourcePlan
    from torchtailor.building.source.bundling.bundle import Bundle
    from torchtailor.building.source.runner import PlannedSourceBuild
    from torchtailor.building.wheel.builder import WheelBuildResult
    from torchtailor.building.wheel.plan import WheelPlan
    from torchtailor.wheelhouse.wheelhouse import Wheelhouse


def show_plan(method: str, plan: BuildPlan, *, dry_run: bool) -> None:
    """Before a build to stderr, since stdout is for results; in a dry run of a method without wheels to stdout."""
    show_unavailable(plan.unavailable)
    _PLANS.get(method, _any_plan)(plan, dry_run)


def show_unavailable(unavailable: Unavailable) -> None:
    """What was selected and is not built, with the reason."""
    for reason, names in unavailable.items():
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        ui.err().print(f"warning: {counted(len(names), 'variant')} not available: {shown}", markup=False)
        ui.err().print(f"  {reason}", markup=False)


def show_result(method: str, result: BuildResult) -> None:
    _RESULTS.get(method, _any_result)(result)


def _wheel_plan(plan: WheelPlan, dry_run: bool) -> None:
    say = ui.err()
    for item in plan.plans:
        say.print(
            f"{item.name}: PyTorch {item.variant.release.version} ({item.label}), Python {item.variant.python}, "
            f"{item.variant.arch}",
            markup=False,
        )
        others = (f"Needs another build method: {text}" for text in item.other_methods)
        for line in (*item.notes, item.gives, *others):
            say.print(f"  {line}", markup=False)
    rows = [
        (
            wheel.name,
            str(wheel.file.version),
            ui.human_bytes(wheel.size),
            _download(wheel.download, wheel.size),
            wheel.treatment.value,
            wheel.file.source.origin,
        )
        for wheel in plan.plans[0].wheels
    ]
    say.print(ui.table(("wheel", "version", "size", "download", "treatment", "from"), rows))
    say.print(plan.cost_text, markup=False)


def _download(download: int, size: int) -> str:
    if not download:
        return "cached"
    return ui.human_bytes(download) + (" (rest)" if download < size else "")


def _wheel_result(result: WheelBuildResult) -> None:
    show_wheelhouses(result.wheelhouses, result.variants_index)


def show_wheelhouses(wheelhouses: tuple[Wheelhouse, ...], variants_index: Path | None) -> None:
    """Wheelhouses with the lines that install from them, and the index of wheel variants."""
    say = ui.out()
    _wheelhouses(wheelhouses)
    if variants_index:
        index = (variants_index / "simple").absolute().as_uri()
        first = wheelhouses[0]
        torch = f"torch=={first.torch_version.partition('+')[0]}"
        if first.requirements[0].startswith("torch["):  # split: the packs are chosen, torch is the same for all
            torch = f"'torch[gpu]=={first.torch_version}'"
        say.print(f"{variants_index}: wheel variants, chosen by the GPU", markup=False)
        line = f"uv pip install --preview-features wheel-variants --default-index {index} {torch}"
        say.print(f"  {line}", markup=False, soft_wrap=True)


def _wheelhouses(wheelhouses: Iterable[Wheelhouse]) -> None:
    say = ui.out()
    for item in wheelhouses:
        cut = f", {item.changed} of them cut" if item.changed else ""
        before = f"{ui.human_bytes(item.input_bytes)} -> " if item.input_bytes != item.output_bytes else ""
        say.print(f"{item.path}: {item.wheels} wheels{cut}, {before}{ui.human_bytes(item.output_bytes)}", markup=False)
        # in one line for whoever copies it, however narrow the window is
        say.print(f"  {item.pip_line}", markup=False, soft_wrap=True)
        say.print(f"  {item.uv_line}", markup=False, soft_wrap=True)


def _source_plan(plan: SourcePlan, dry_run: bool) -> None:
    _warn(dict.fromkeys(text for builder in plan.builders for text in builder.warnings))
    if dry_run:
        for build in plan.builds:
            _source_build(build)
    if dry_run or len(plan.builders) > 1:
        ui.err().print(f"{plan.cost_text} {plan.here_text}" if dry_run else plan.cost_text, markup=False)


def _source_build(build: PlannedSourceBuild) -> None:
    say = ui.out()
    profile = build.configuration.profile
    say.print(
        f"{build.variant.unique_name} from {build.source}, profile {profile}, in {build.work}",
        markup=False,
        soft_wrap=True,
    )
    missing = {check.name for check in build.blocking}
    rows = [
        ("ok", check.name, check.found, "")
        if check.passed
        else ("MISSING" if check.name in missing else "skipped", check.name, check.found, check.fix)
        for check in build.preflight.checks
    ]
    say.print(ui.table(("", "check", "found", "fix"), rows))
    for reason in build.configuration.reasons:
        say.print(f"  {reason.why}", markup=False)
        say.print(f"    {reason.text}", markup=False, soft_wrap=True)
    if not build.options.bundle:
        say.print("  Not bundled: the wheel will need libraries of this system.", markup=False)
    if missing:
        say.print(
            f"This build would not start here: {', '.join(sorted(missing))}. Fix that, or add --skip-check NAME.",
            markup=False,
        )


def _source_result(result: SourceBuildResult) -> None:
    for build in result.builds:
        shared = f", ccache hits {build.hits}" if build.hits else ""
        attempts = f", {build.attempts} attempts" if build.attempts > 1 else ""
        ui.out().print(
            f"{build.variant}: {ui.human_seconds(build.seconds)}, peak memory {ui.human_bytes(build.peak_memory)}"
            f"{shared}{attempts}; log {build.log}",
            markup=False,
        )
        if build.wheel is None:
            ui.out().print(f"  built in {build.build / 'src' / 'build'}", markup=False)
        if build.bundle is not None:
            _bundle(build.bundle)
        _warn(build.warnings)
        _wheelhouses(build.wheelhouses)


def _bundle(bundle: Bundle) -> None:
    """The libraries that came into the wheel, each with the package and licence it is of."""
    say = ui.out()
    if bundle.libraries:
        number = counted(len(bundle.libraries), "library", "libraries")
        say.print(f"  bundled {number}, {ui.human_bytes(bundle.size)}; runs on {bundle.platform}:", markup=False)
        rows = [
            (
                library.soname,
                ui.human_bytes(library.size),
                f"{library.owner.package} {library.owner.version}" if library.owner else "no package",
                library.owner.licence or "see its text" if library.owner else "",
            )
            for library in bundle.libraries
        ]
        say.print(ui.table(("library", "size", "package", "licence"), rows))
    else:
        say.print(f"  nothing to bundle; runs on {bundle.platform}", markup=False)
    for name, why in bundle.left.items():
        say.print(f"  not bundled: {name} ({why})", markup=False)
    _warn(bundle.warnings)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        ui.err().print(f"warning: {warning}", markup=False, soft_wrap=True)


def _nix_plan(plan: NixPlan, dry_run: bool) -> None:
    if dry_run:
        for job in plan.jobs:
            ui.out().print(f"{job.name}: {' '.join(job.command)}", markup=False, soft_wrap=True)


def _nix_result(result: NixBuildResult) -> None:
    show_nix_outputs(result.outputs)


def show_nix_outputs(outputs: Iterable[NixOutput]) -> None:
    """What Nix has built, with the links to it."""
    for item in outputs:
        took = f"{ui.human_bytes(item.output_bytes)} in {ui.human_seconds(item.seconds)}"
        ui.out().print(f"{item.link}: {took}", markup=False, soft_wrap=True)


def _any_plan(plan: BuildPlan, dry_run: bool) -> None:
    """Of a method that is not torchtailor's own."""
    say = ui.out() if dry_run else ui.err()
    for variant in plan.variants:
        say.print(variant.unique_name, markup=False)
    say.print(plan.cost_text, markup=False)


def _any_result(result: BuildResult) -> None:
    _wheelhouses(result.wheelhouses)


_PLANS: dict[str, Callable[[Any, bool], None]] = {
    WHEEL: _wheel_plan,
    SOURCE: _source_plan,
    NIX: _nix_plan,
}
_RESULTS: dict[str, Callable[[Any], None]] = {
    WHEEL: _wheel_result,
    SOURCE: _source_result,
    NIX: _nix_result,
}
