"""`torchtailor install`: build if needed, install into an environment, see that it imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli.build import (
    ExtraIndexUrl,
    FindLinks,
    IndexUrl,
    KeepPtx,
    Nvidia,
    Offline,
    Plain,
    Python,
    Quiet,
    Recompress,
    Release,
    With,
)


def command(
    variant: Annotated[
        str | None, typer.Argument(metavar="VARIANT", help="A name such as sm90-avx512. None: this machine's.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="The environment; made if it does not exist. Else the active one.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the wheelhouse is or goes.")] = Path("dist"),
    release: Release = None,
    python: Python = None,
    companions: With = None,
    nvidia: Nvidia = None,
    recompress: Recompress = False,
    keep_ptx: KeepPtx = False,
    index_url: IndexUrl = None,
    extra_index_url: ExtraIndexUrl = None,
    find_links: FindLinks = None,
    offline: Offline = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Build if needed, and install into an environment.

    uv or pip installs it; then torch must import and calculate.
    """
    from torchtailor import ui
    from torchtailor.catalog import load_catalog
    from torchtailor.cli.build import make_finder, make_plan, read_options, run_plan, show_plan
    from torchtailor.wheelhouse.install import check_environment, find_environment, install, make_environment

    environment = find_environment(into)
    catalog = load_catalog()
    options = read_options(catalog, companions=companions, nvidia=nvidia, recompress=recompress, keep_ptx=keep_ptx)
    finder = make_finder(index_url, extra_index_url, find_links, offline=offline)
    words = [variant] if variant else []
    plan = make_plan(catalog, finder, options, words, False, release, python, out)
    if dry_run and json:
        ui.print_json(plan.to_json() | {"environment": str(environment)})
        return
    if not quiet and not json:
        show_plan(plan)
    if dry_run:
        return
    check_environment(environment, plan.plans[0].target)
    built = run_plan(plan, catalog, finder, quiet=quiet or json, plain=plain)
    (house,) = built.wheelhouses
    make_environment(environment, house.target)
    installed = install(house, environment)
    if json:
        ui.print_json({"wheelhouse": house.to_json(), "installed": installed})
        return
    cuda = f"CUDA {installed.cuda}" if installed.cuda else "no CUDA"
    ui.out().print(
        f"torch {installed.version} ({cuda}, Python {installed.python}) is in {installed.environment}, installed with "
        f"{installed.installer}; it imports and calculates.",
        markup=False,
    )
