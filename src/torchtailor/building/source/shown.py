"""Plans and results of builds from source, as they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtailor.building.shown import Line, Rows, Shown, warning_lines, wheelhouse_lines
from torchtailor.building.source.bundling.bundle import Bundle
from torchtailor.building.source.runner import PlannedSourceBuild, SourceBuild
from torchtailor.core.format import counted, human_bytes, human_seconds

if TYPE_CHECKING:
    from torchtailor.building.source.backend import SourcePlan


def source_plan_lines(plan: SourcePlan, *, dry_run: bool) -> Iterator[Shown]:
    yield from warning_lines(dict.fromkeys(text for builder in plan.builders for text in builder.warnings))
    if dry_run:
        for build in plan.builds:
            yield from _build(build)
    if dry_run or len(plan.builders) > 1:
        yield Line(f"{plan.cost_text} {plan.here_text}" if dry_run else plan.cost_text)


def _build(build: PlannedSourceBuild) -> Iterator[Shown]:
    profile = build.configuration.profile
    head = f"{build.variant.unique_name} from {build.source}, profile {profile}, in {build.work}"
    yield Line(head, result=True, whole=True)
    missing = {check.name for check in build.blocking}
    rows = [
        ("ok", check.name, check.found, "")
        if check.passed
        else ("MISSING" if check.name in missing else "skipped", check.name, check.found, check.fix)
        for check in build.preflight.checks
    ]
    yield Rows(("", "check", "found", "fix"), rows, result=True)
    for reason in build.configuration.reasons:
        yield Line(f"  {reason.why}", result=True)
        yield Line(f"    {reason.text}", result=True, whole=True)
    if not build.options.bundle:
        yield Line("  Not bundled: the wheel will need libraries of this system.", result=True)
    if missing:
        names = ", ".join(sorted(missing))
        yield Line(f"This build would not start here: {names}. Fix that, or add --skip-check NAME.", result=True)


def source_build_lines(build: SourceBuild) -> Iterator[Shown]:
    shared = f", ccache hits {build.hits}" if build.hits else ""
    attempts = f", {build.attempts} attempts" if build.attempts > 1 else ""
    took = f"{human_seconds(build.seconds)}, peak memory {human_bytes(build.peak_memory)}"
    yield Line(f"{build.variant}: {took}{shared}{attempts}; log {build.log}", result=True)
    if build.wheel is None:
        yield Line(f"  built in {build.build / 'src' / 'build'}", result=True)
    if build.bundle is not None:
        yield from _bundle(build.bundle)
    yield from warning_lines(build.warnings)
    yield from wheelhouse_lines(build.wheelhouses)


def _bundle(bundle: Bundle) -> Iterator[Shown]:
    """The libraries that came into the wheel, each with the package and licence it is of."""
    if bundle.libraries:
        number = counted(len(bundle.libraries), "library", "libraries")
        yield Line(f"  bundled {number}, {human_bytes(bundle.size)}; runs on {bundle.platform}:", result=True)
        rows = [
            (
                library.soname,
                human_bytes(library.size),
                f"{library.owner.package} {library.owner.version}" if library.owner else "no package",
                library.owner.licence or "see its text" if library.owner else "",
            )
            for library in bundle.libraries
        ]
        yield Rows(("library", "size", "package", "licence"), rows, result=True)
    else:
        yield Line(f"  nothing to bundle; runs on {bundle.platform}", result=True)
    for name, why in bundle.left.items():
        yield Line(f"  not bundled: {name} ({why})", result=True)
    yield from warning_lines(bundle.warnings)
