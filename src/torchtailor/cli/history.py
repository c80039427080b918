"""`torchtailor history`: every build attempt, from the ledger."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchtailor.cli import _options
from torchtailor.core.errors import NoMatchError


def command(
    variant: Annotated[
        str | None,
        typer.Argument(metavar="VARIANT", help="Only attempts at variants of this name or glob, or their jobs."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of the last attempts.")] = 50,
    json: _options.Json = False,
    farm: Annotated[bool, typer.Option("--farm", help="Jobs of builds on many machines, with their workers.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table for a report.")] = False,
) -> None:
    """Show every build attempt.

    What was built, how, for how long, what failed and how to fix it.
    """
    from torchtailor.building.ledger.history import JOB_COLUMNS, as_markdown, attempt_columns
    from torchtailor.building.ledger.ledger import Attempts, Ledger, LedgerJobs
    from torchtailor.cli import ui

    rows: Any
    columns: Any
    if farm:
        rows, columns = Ledger().jobs(variant=variant, limit=limit), JOB_COLUMNS
        none = "There are no jobs of"
    else:
        rows = Ledger().attempts(variant=variant, limit=limit)
        columns, none = attempt_columns(rows), "There are no attempts at"
    if variant and not rows:
        everything = "torchtailor history --farm" if farm else "torchtailor history"
        raise NoMatchError(f"{none} {variant!r}.", f"`{everything}` lists all.")
    if json and farm:
        ui.print_json("history-jobs", LedgerJobs(rows))
    elif json:
        ui.print_json("history", Attempts(rows))
    elif markdown:
        ui.print_text(as_markdown(columns, rows))
    elif not rows:
        ui.out().print("No jobs on many machines yet." if farm else "No build attempts yet.")
    else:
        cells = [[column.text(row) for column in columns] for row in rows]
        ui.out().print(ui.table([column.title for column in columns], cells, optional=("run", "ended")))
