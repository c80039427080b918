"""`torchtailor history`: every build attempt, from the ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from torchtailor.core.errors import NoMatchError


def command(
    variant: Annotated[
        str | None,
        typer.Argument(metavar="VARIANT", help="Only attempts at variants of this name or glob, or their jobs."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of the last attempts.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    jobs: Annotated[bool, typer.Option("--jobs", help="Jobs of builds on many machines, with their workers.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table for a report.")] = False,
) -> None:
    """Show every build attempt.

    What was built, how, for how long, what failed and how to fix it.
    """

    from torchtailor.building.ledger.history import switch_columns
    from torchtailor.building.ledger.ledger import Attempts, Ledger, as_markdown, describe, stopped_at
    from torchtailor.cli import ui

    if jobs:
        _show_jobs(variant, limit, json=json, markdown=markdown)
        return
    attempts = Ledger().attempts(variant=variant, limit=limit)
    if variant and not attempts:
        raise NoMatchError(f"There are no attempts at {variant!r}.", "`torchtailor history` lists all.")
    if json:
        ui.print_json("history", Attempts(attempts))
        return
    if markdown:
        ui.print_text(as_markdown(attempts, switch_columns(attempts)))
        return
    if not attempts:
        ui.out().print("No build attempts yet.")
        return
    switches = switch_columns(attempts)
    columns = (
        "#",
        "started",
        "variant",
        "method",
        *switches,
        "configuration",
        "result",
        "in",
        "out",
        "took",
        "error",
        "fix",
    )
    rows = [
        (
            attempt.number,
            attempt.started.astimezone().strftime("%Y-%m-%d %H:%M"),
            attempt.variant,
            attempt.method,
            *(attempt.configuration.get(name, "") for name in switches),
            describe(attempt.configuration),
            attempt.result.words + stopped_at(attempt),
            ui.human_bytes(attempt.input_bytes) if attempt.input_bytes is not None else "",
            ui.human_bytes(attempt.output_bytes) if attempt.output_bytes is not None else "",
            ui.human_seconds(attempt.duration) if attempt.duration is not None else "",
            ": ".join(part for part in (attempt.error_class, attempt.error) if part),
            attempt.fix,
        )
        for attempt in attempts
    ]
    ui.out().print(ui.table(columns, rows))


def _show_jobs(variant: str | None, limit: int, *, json: bool, markdown: bool) -> None:
    """The jobs of builds on many machines, each with its worker, time and hits."""
    from torchtailor.building.ledger.ledger import Ledger, LedgerJobs, jobs_as_markdown
    from torchtailor.cli import ui

    jobs = Ledger().jobs(variant=variant, limit=limit)
    if variant and not jobs:
        raise NoMatchError(f"There are no jobs of {variant!r}.", "`torchtailor history --jobs` lists all.")
    if json:
        ui.print_json("history-jobs", LedgerJobs(jobs))
        return
    if markdown:
        ui.print_text(jobs_as_markdown(jobs))
        return
    rows = [
        (
            job.run,
            job.ended.astimezone().strftime("%Y-%m-%d %H:%M"),
            job.label,
            job.worker,
            job.result.words,
            ui.human_seconds(job.duration),
            f"{job.hits}/{job.hits + job.misses}" if job.hits + job.misses else "",
            job.error,
            job.fix,
            job.log,
        )
        for job in jobs
    ]
    columns = ("run", "ended", "job", "worker", "result", "took", "hits", "error", "fix", "log")
    shown = ui.table(columns, rows, optional=("run", "ended")) if rows else "No jobs on many machines yet."
    ui.out().print(shown)
