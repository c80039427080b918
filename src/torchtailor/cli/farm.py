"""`torchtailor farm`: the clusters that `build --on` uses."""

from __future__ import annotations

from typing import Annotated

import typer

from torchtailor.cli import _options as options
from torchtailor.cli._layout import GroupedCommand, GroupedGroup
from torchtailor.core.errors import EnvironmentProblem

app = typer.Typer(
    cls=GroupedGroup, add_completion=False, rich_markup_mode=None, help="Check the machines that `build --on` uses."
)


@app.callback()
def main() -> None:
    """Check the machines that `build --on` uses."""


@app.command("check", cls=GroupedCommand, short_help="Say what workers are, see and can build.")
def check(
    where: Annotated[str, typer.Argument(metavar="WHERE", help="here, local:N, tls://HOST:PORT, or [farm.NAME].")],
    store: options.Store = None,
    objects: options.Objects = None,
    json: options.Json = False,
) -> None:
    """Start a worker, and say what it is, whether it sees the store, and what it can build."""
    from torchtailor.building.farm.check import check_farm
    from torchtailor.building.farm.where import parse_where
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.core.format import counted

    place = parse_where(where, load_catalog())
    checked = check_farm(place, store=store, objects=objects, say=lambda text: ui.err().print(text, markup=False))
    workers = checked.workers
    if json:
        ui.print_json("farm-check", checked)
    else:
        rows = [
            (
                worker.worker,
                ", ".join(worker.builds) or "nothing",
                worker.facts.get("cpu") or worker.facts.get("machine", ""),
                worker.facts.get("cores", ""),
                ui.human_bytes(worker.facts["memory"]) if worker.facts else "",
                ui.human_bytes(worker.facts["disk_free"]) if worker.facts else "",
                worker.facts.get("compiler", ""),
                worker.facts.get("nix", ""),
                worker.why,
            )
            for worker in workers
        ]
        shared = f", objects {checked.objects}" if checked.objects else ""
        ui.out().print(f"store {checked.store}{shared}", markup=False, soft_wrap=True)
        columns = ("worker", "builds", "CPU", "cores", "memory", "disk free", "compiler", "Nix", "why not")
        ui.out().print(ui.table(columns, rows, optional=("Nix", "CPU")))
    refused = [worker for worker in workers if not worker.usable]
    if not workers:
        raise EnvironmentProblem(
            f"No worker came on {where} in {ui.human_seconds(place.patience)}.",
            "Look into the queue of the cluster; `wait_minutes` of [farm.NAME] says how long to wait.",
        )
    if refused:
        raise EnvironmentProblem(f"{len(refused)} of {counted(len(workers), 'worker')} cannot be used.", refused[0].why)
