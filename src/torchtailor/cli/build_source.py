"""`torchtailor build --via source`: PyTorch compiled for variants, shown as it goes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.errors import UsageError

if TYPE_CHECKING:
    from torchtailor.backends.source.plan import MatrixPlan
    from torchtailor.backends.source.progress import Progress
    from torchtailor.backends.source.runner import Request, SourceBuilder, SourceResult
    from torchtailor.catalog import Catalog

_PANEL = "With --via source"

Source = Annotated[
    str | None, typer.Option(help="GIT-URL@REF, TARBALL or DIR; none: the official tag.", rich_help_panel=_PANEL)
]
Profile = Annotated[str, typer.Option(help="full, inference or minimal.", rich_help_panel=_PANEL)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A switch: USE_XNNPACK=0.", rich_help_panel=_PANEL, metavar="NAME=VALUE"),
]
Jobs = Annotated[str, typer.Option(help="Files at once; auto: as many as fit into memory.", rich_help_panel=_PANEL)]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on where the same build stopped.", rich_help_panel=_PANEL)
]
Toolchain = Annotated[
    str, typer.Option(help="system, or wheels: nvcc and CUDA from NVIDIA's wheels.", rich_help_panel=_PANEL)
]
AutoMend = Annotated[
    int, typer.Option(min=0, help="Apply a known safe mend and try again, so often.", rich_help_panel=_PANEL)
]
Gpus = Annotated[
    str | None, typer.Option(help="all: one fat library per ISA, cut for each GPU.", rich_help_panel=_PANEL)
]
SkipCheck = Annotated[
    list[str] | None, typer.Option(help="Build though this check fails.", rich_help_panel=_PANEL, metavar="NAME")
]
Work = Annotated[Path | None, typer.Option(help="Where to compile (20 GB).", rich_help_panel=_PANEL)]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Prove the wheel.", rich_help_panel=_PANEL)]
Target = Annotated[
    list[str] | None,
    typer.Option("--target", help="Only this ninja target, such as c10; repeatable; no wheel.", rich_help_panel=_PANEL),
]
Ccache = Annotated[
    bool, typer.Option("--ccache/--no-ccache", help="Share objects between builds.", rich_help_panel=_PANEL)
]


@dataclass(frozen=True)
class SourceOptions:
    """The options of this way, as they were given."""

    source: str | None = None
    profile: str = "full"
    overrides: tuple[str, ...] = ()
    jobs: str = "auto"
    resume: bool = True
    toolchain: str = "system"
    auto_mend: int = 0
    gpus: str | None = None
    skip_checks: tuple[str, ...] = ()
    work: Path | None = None
    verify: bool = True
    targets: tuple[str, ...] = ()
    ccache: bool = True

    @property
    def job_count(self) -> int | None:
        if self.jobs == "auto":
            return None
        if not self.jobs.isdigit() or int(self.jobs) < 1:
            raise UsageError(f"--jobs {self.jobs!r} is neither a number nor auto.", "Write --jobs 4 or --jobs auto.")
        return int(self.jobs)

    @property
    def cuda_from_wheels(self) -> bool:
        if self.toolchain not in ("system", "wheels"):
            raise UsageError(f"--toolchain {self.toolchain!r} is neither system nor wheels.")
        return self.toolchain == "wheels"


def build_via_source(
    catalog: Catalog,
    words: list[str],
    options: SourceOptions,
    *,
    everything: bool,
    release: str | None,
    python: str | None,
    out: Path,
    dry_run: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Compile each variant; several GPUs of one ISA come out of one fat library."""
    from torchtailor import ui
    from torchtailor.backends.choose import choose
    from torchtailor.backends.source.plan import plan_matrix
    from torchtailor.backends.source.runner import SourceBuilder
    from torchtailor.backends.source.tables import load_tables
    from torchtailor.catalog import Method

    choices = choose(catalog, words, everything=everything, release=release, python=python, via=Method.SOURCE)
    plan = plan_matrix(catalog, load_tables(), [item.variant for item in choices], all_gpus=_all_gpus(options))
    requests = [_request(group.variant, group.gpus, options, out) for group in plan.groups]
    builders = [SourceBuilder(catalog, request, watcher=_Shown(quiet=quiet or json)) for request in requests]
    if dry_run:
        documents = [_described(builder) for builder in builders]
        if json:
            ui.print_json({"plan": plan.to_json(), "builds": documents})
        else:
            _show_plan(plan, builders)
        return
    if len(plan.groups) > 1 and not quiet and not json:
        _show_cost(plan)
    results = []
    for builder in builders:
        with builder.watcher:  # type: ignore[attr-defined]
            results.append(builder.build())
        if not json:
            _show_result(results[-1])
    if json:
        ui.print_json([result.to_json() for result in results])


def _all_gpus(options: SourceOptions) -> bool:
    if options.gpus not in (None, "all"):
        raise UsageError(
            f"--gpus {options.gpus!r} is not known.", "Write --gpus all, or name variants: 'sm{80,90}-avx2'."
        )
    return options.gpus == "all"


def _request(variant: Any, gpus: Any, options: SourceOptions, out: Path) -> Request:
    from torchtailor.backends.source.runner import Request

    return Request(
        variant=variant,
        source=options.source,
        profile=options.profile,
        overrides=options.overrides,
        gpus=gpus,
        jobs=options.job_count,
        resume=options.resume,
        auto_mend=options.auto_mend,
        cuda_from_wheels=options.cuda_from_wheels,
        skip_checks=options.skip_checks,
        verify=options.verify,
        out=out,
        work=options.work,
        targets=options.targets or ("install",),
        ccache=options.ccache,
    )


def _described(builder: SourceBuilder) -> dict[str, object]:
    seen = builder.preflight()
    return {
        "variant": builder.request.variant.unique_name,
        "source": str(builder.source),
        "work": str(builder.folders.work),
        "configuration": builder.configuration(seen.blas).to_json(),
        "preflight": seen.to_json(),
    }


def _show_plan(plan: MatrixPlan, builders: list[SourceBuilder]) -> None:
    from torchtailor import ui

    say = ui.out()
    for builder in builders:
        seen = builder.preflight()
        configuration = builder.configuration(seen.blas)
        say.print(
            f"{builder.request.variant.unique_name} from {builder.source}, in {builder.folders.work}", markup=False
        )
        rows = [
            ("ok" if check.passed else "MISSING", check.name, check.found, "" if check.passed else check.mend)
            for check in seen.checks
        ]
        say.print(ui.table(("", "check", "found", "mend"), rows))
        switches = " ".join(f"{name}={value}" for name, value in sorted(configuration.environment.items()))
        say.print(f"  {switches}", markup=False, soft_wrap=True)
        if configuration.cache:
            cached = " ".join(f"{name}={value}" for name, value in sorted(configuration.cache.items()))
            say.print(f"  CMake cache: {cached}", markup=False, soft_wrap=True)
        for rule in configuration.rules:
            say.print(f"  - {rule.why}", markup=False)
    _show_cost(plan)


def _show_cost(plan: MatrixPlan) -> None:
    from torchtailor import ui

    ui.err().print(plan.said, markup=False)


def _show_result(result: SourceResult) -> None:
    from torchtailor import ui

    say = ui.out()
    shared = f", ccache had {result.hits}" if result.hits else ""
    tries = f", {result.attempts} attempts" if result.attempts > 1 else ""
    say.print(
        f"{result.variant}: {ui.human_seconds(result.seconds)}, at most {ui.human_bytes(result.peak_memory)} of memory"
        f"{shared}{tries}; log {result.log}",
        markup=False,
    )
    if result.wheel is None:
        say.print(f"  built in {result.build / 'src' / 'build'}", markup=False)
    for house in result.houses:
        say.print(f"{house.path}: {house.wheels} wheels, {ui.human_bytes(house.output_bytes)}", markup=False)
        say.print(f"  {house.pip_line}", markup=False)
        say.print(f"  {house.uv_line}", markup=False)


class _Shown:
    """A bar on a terminal; elsewhere a line for each stage and each tenth of the files."""

    def __init__(self, *, quiet: bool) -> None:
        from torchtailor import ui

        self._quiet = quiet
        self._bar = ui.progress(quiet=quiet)
        self._task: Any = None
        self._tenth = 0
        self._total = 0
        self._live = sys.stderr.isatty() and not quiet

    def __enter__(self) -> _Shown:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        self._tenth = 0
        self._say(text)

    def progress(self, progress: Progress) -> None:
        from torchtailor import ui

        if progress.total != self._total:  # ninja learns of more files when code was generated
            self._total, self._tenth = progress.total, int(progress.percent // 10)
        slowest = ", ".join(f"{Path(file.output).name} {file.seconds:.0f} s" for file in progress.slowest)
        left = f", about {ui.human_seconds(progress.remaining)} left" if progress.remaining else ""
        memory = f", {ui.human_bytes(progress.memory)}" if progress.memory else ""
        told = f"{progress.done} of {progress.total} files{memory}{left}" + (f"; at {slowest}" if slowest else "")
        if self._live:
            if self._task is None:
                self._task = self._bar.add_task("", total=progress.total)
            self._bar.update(self._task, completed=progress.done, total=progress.total, description=told)
        elif progress.percent // 10 > self._tenth:
            self._tenth = int(progress.percent // 10)
            self._say(told)

    def _say(self, text: str) -> None:
        from torchtailor import ui

        if not self._quiet:
            ui.err().print(text, markup=False, soft_wrap=True)
