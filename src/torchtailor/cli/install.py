"""`torchtailor install`: build if needed, install into an environment, test the import."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli import _cut
from torchtailor.cli import _options as options
from torchtailor.fetch.options import IndexOptions


@_cut.takes_cut("install", panel=options.CUT_WHEELS)
@options.takes_indexes()
def command(
    variant: Annotated[
        str | None, typer.Argument(metavar="VARIANT", help="A name such as sm90-avx512. None: this machine's.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="The environment; created if it does not exist. None: the active one.")
    ] = None,
    out: options.Out = Path("dist"),
    release: options.Release = None,
    python: options.Python = None,
    companions: options.With = None,
    gpu: options.NoGpu = None,
    *,
    cut: _cut.ChosenCut,
    indexes: IndexOptions,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    plain: options.Plain = False,
) -> None:
    """Build if needed, and install into an environment.

    uv or pip installs it; then an import and a matmul test must pass.
    """
    from torchtailor.building.install import plan_install
    from torchtailor.catalog.gpus import NO_GPU_LABEL
    from torchtailor.cli import ui
    from torchtailor.cli._build_output import show_plan
    from torchtailor.cli._progress import BuildDisplay

    if not json and not quiet:
        _cut.say_standing(cut)
    with ui.working("Asking the package indexes", quiet=json or quiet):
        planned = plan_install(
            variant,
            into=into,
            release=options.only("--release", release),
            python=options.only("--python", python),
            out=out,
            companions=tuple(companions or ()),
            **cut.choices,
            without_gpu=_cut.without_gpu("install", gpu),
            **asdict(indexes),
        )
    if dry_run and json:
        ui.print_json("install-plan", planned.document)
        return
    if not json and (dry_run or not quiet):
        show_plan(planned.build.plan, dry_run=dry_run)
    if dry_run:
        return
    with BuildDisplay(quiet=quiet, plain=plain) as display:
        result = planned.run(display)
    if json:
        ui.print_json("install", result)
        return
    installed = result.installed
    cuda = f"CUDA {installed.cuda}" if installed.cuda else "no CUDA"
    if result.wheelhouse.torch_version.endswith(NO_GPU_LABEL):
        cuda += " without GPU code"
    ui.out().print(
        f"Installed torch {installed.version} ({cuda}, Python {installed.python}) into {installed.environment} with "
        f"{installed.installer}; import and matmul test passed.",
        markup=False,
    )
