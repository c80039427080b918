"""`torchtailor doctor`: why torch does not run on this machine, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.core.errors import ExitCode

if TYPE_CHECKING:
    from torchtailor.verification.doctor import DoctorReport


def command(
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE|LOG", help="The message, or a file that holds it; `-` reads stdin."),
    ] = None,
    env: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The environment; by default the active one.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Another machine, described by `detect --json`.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Import torch and run one kernel, to see whether it works.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Explain why torch does not run on this machine, and name the command that fixes it."""
    import sys

    from torchtailor.cli.ui import print_json
    from torchtailor.verification.doctor import doctor

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if message == "-" else message or ""
    report = doctor(text, environment=env, machine=source, run=run)
    if json:
        print_json("doctor", report)
    else:
        _print(report)
    if report.problems:
        return ExitCode.CHECK_FAILED
    return ExitCode.NO_MATCH if report.unexplained else ExitCode.OK


def _print(report: DoctorReport) -> None:
    from rich.text import Text

    from torchtailor.cli.ui import out

    console = out()
    console.print(Text.assemble(("machine  ", "bold"), report.machine))
    console.print(Text.assemble(("torch    ", "bold"), report.torch))
    for problem in report.problems:
        console.print()
        console.print(Text.assemble(("problem  ", "bold red"), problem.cause))
        if problem.seen:
            console.print(Text(f"         It explains: {problem.seen}", style="dim"))
        for number, fix in enumerate(problem.fixes):
            console.print(Text.assemble(("fix      " if not number else "or       ", "bold"), fix.text))
            for row in (fix.toml or "").splitlines():
                console.print(Text(f"           {row}", style="cyan"), soft_wrap=True)
            if fix.command:
                console.print(Text(f"           {fix.command}", style="bold green"), soft_wrap=True)
    for line in report.healthy:
        console.print(Text.assemble(("ok       ", "bold green"), line))
    for line in report.unexplained:
        console.print(Text.assemble(("unknown  ", "bold yellow"), f"This message is not known: {line}"))
    if report.unexplained:
        console.print(Text("         For a build log, use `torchtailor diagnose LOG`."))
