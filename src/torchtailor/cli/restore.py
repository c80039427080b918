"""`torchtailor restore`: undo a tailoring in place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli import _options
from torchtailor.core.errors import ExitCode

_SHOWN = 20


def command(
    env: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The environment; by default the active one, or .venv.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")] = False,
    json: _options.Json = False,
) -> int:
    """Undo a cut in place, or print how to reinstall."""
    from torchtailor.cli.ui import ProgressBar, human_bytes, out, print_json
    from torchtailor.core.format import counted
    from torchtailor.tailoring.restore import Restored, restore

    with ProgressBar(quiet=json) as bar:
        results = restore(env, dry_run=dry_run, progress=bar)
    commands = [line for result in results for line in result.commands]
    if json:
        print_json("restore", Restored(dry_run, results))
        return ExitCode.ENVIRONMENT if commands or any(result.came_cut for result in results) else ExitCode.OK
    restored = [result.site / library for result in results for library in result.libraries]
    if restored:
        verb = "Would restore" if dry_run else "Restored"
        size = human_bytes(sum(result.size for result in results))
        out().print(f"{verb} {counted(len(restored), 'file')}, {size}:", markup=False)
        for library in restored[:_SHOWN]:
            out().print(f"  {library}", markup=False)
        if more := restored[_SHOWN:]:
            out().print(f"  and {len(more)} more, which --json lists", markup=False)
    if commands:
        out().print("These packages were cut without --keep-removed. To reinstall them, run:", markup=False)
        for line in commands:
            out().print(f"  {line}", markup=False, soft_wrap=True)  # in one line, for whoever copies it
    elsewhere = [name for result in results for name in result.came_cut]
    if elsewhere:
        out().print(
            f"{', '.join(elsewhere)} came here as torchtailor had cut it, and what was cut out is not here: use what "
            "it was made from, which is unchanged, or install the stock packages again.",
            markup=False,
        )
    elif not restored and not commands:
        out().print("Nothing was cut in this environment: there is nothing to restore.", markup=False)
    return ExitCode.ENVIRONMENT if commands or elsewhere else ExitCode.OK
