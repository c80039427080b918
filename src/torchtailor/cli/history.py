"""`torchtailor history`: every build attempt, from the ledger."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    variant: Annotated[str | None, typer.Argument(help="Only attempts at this variant (its full name).")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many of the last attempts.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table for a report.")] = False,
) -> None:
    """Show every build attempt.

    What was built, how, for how long, what failed and how to fix it.
    """

    from torchtailor import ui
    from torchtailor.ledger.history import switch_columns
    from torchtailor.ledger.ledger import Ledger, as_markdown, describe, stopped_at

    attempts = Ledger().attempts(variant=variant, limit=limit)
    if json:
        ui.print_json("history", {"attempts": attempts})
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
            attempt.method.value,
            *(attempt.configuration.get(name, "") for name in switches),
            describe(attempt.configuration),
            attempt.result.value + stopped_at(attempt),
            ui.human_bytes(attempt.input_bytes) if attempt.input_bytes is not None else "",
            ui.human_bytes(attempt.output_bytes) if attempt.output_bytes is not None else "",
            ui.human_seconds(attempt.duration) if attempt.duration is not None else "",
            ": ".join(part for part in (attempt.error_class, attempt.error) if part),
            attempt.fix,
        )
        for attempt in attempts
    ]
    ui.out().print(ui.table(columns, rows))
