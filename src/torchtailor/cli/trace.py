"""`torchtailor trace`: show and merge traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._layout import GroupedCommand, GroupedGroup

if TYPE_CHECKING:
    from torchtailor.workload.trace import Trace

app = typer.Typer(cls=GroupedGroup, add_completion=False, rich_markup_mode=None, help="Show and merge traces.")


@app.command("show", cls=GroupedCommand)
def show_command(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="Traces; several are shown as one.")],
    report: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained HTML page to this file, with the traces side by side."),
    ] = None,
    json: _options.Json = False,
) -> None:
    """Show what was used of each library."""
    from torchtailor.cli.record import show

    show(_read(traces), ", ".join(map(str, traces)), json=json)
    if report:
        from torchtailor.verification.report.traces import write_trace_report

        write_trace_report({str(path): _read([path]) for path in traces}, report)


@app.command("merge", cls=GroupedCommand)
def merge_command(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Traces, folders that TORCHTAILOR_RECORD named, and misses.tsv files."),
    ],
    output: Annotated[Path, typer.Option("--out", "-o", metavar="TRACE", help="The trace to write.")],
    json: _options.Json = False,
) -> None:
    """Make one trace of several, or of what processes recorded."""
    from torchtailor.cli.record import show
    from torchtailor.workload.trace import check_trace_output, write_trace

    trace = _read(inputs)
    check_trace_output(output)
    write_trace(output, trace)
    show(trace, str(output), json=json)


def _read(paths: list[Path]) -> Trace:
    from torchtailor.workload.record import trace_of
    from torchtailor.workload.trace import merge_traces, read_trace

    return merge_traces(
        trace_of([path]) if path.is_dir() or path.suffix == ".tsv" else read_trace(path) for path in paths
    )
