"""`torchtailor restore`: undo a tailoring in place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.errors import ExitCode


def command(
    env: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The environment; by default the active one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Undo an in-place tailoring, or say how to reinstall what cannot be restored."""
    from torchtailor.tailor.environment import environment_sites
    from torchtailor.tailor.restore import restore_environment
    from torchtailor.ui import ProgressBar, human_bytes, out, print_json

    with ProgressBar(quiet=json) as bar:
        results = [restore_environment(site, dry_run=dry_run, progress=bar) for site in environment_sites(env)]
    commands = [command for result in results for command in result.commands]
    if json:
        print_json({"dry_run": dry_run, "environments": results})
    else:
        restored = [library for result in results for library in result.libraries]
        size = sum(result.size for result in results)
        if restored:
            verb = "Would restore" if dry_run else "Restored"
            out().print(f"{verb} {len(restored)} libraries, {human_bytes(size)}:", markup=False)
            for library in restored:
                out().print(f"  {library}", markup=False)
        if commands:
            out().print("Of these packages nothing was kept (no --keep-removed). To have them back, run:", markup=False)
            for line in commands:
                out().print(f"  {line}", markup=False)
        if not restored and not commands:
            out().print("Nothing was cut here: there is nothing to restore.", markup=False)
    return ExitCode.ENVIRONMENT if commands else ExitCode.OK
