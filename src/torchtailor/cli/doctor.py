"""`torchtailor doctor`: why torch does not run on this machine or a build failed, and what fixes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.cli import _options
from torchtailor.cli._layout import GroupedCommand
from torchtailor.core.errors import ExitCode, NoMatchError, UsageError

if TYPE_CHECKING:
    from torchtailor.verification.doctor import DoctorReport
    from torchtailor.verification.failures import Diagnosis


class CommandType(GroupedCommand):
    """Takes a word that begins with a dash and is no option for the message: shells begin theirs with `-bash: `."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        message = [] if "--" in args else [word for word in args if re.match(r"-[^=\s:]*[\s:]", word)]
        if message:
            args = [*(word for word in args if word not in message), "--", *message]
        return super().parse_args(ctx, args)


def command(
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE|LOG", help="The message, or a log of any size; `-` reads standard input."),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The log of the last build from source.")] = False,
    env: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The environment; by default the active one, or .venv.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Another machine, described by `detect --json`.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Import torch and run one kernel, to see whether it works.")
    ] = True,
    json: _options.Json = False,
) -> int:
    """Explain why torch does not run, a message, or a failed build."""
    import sys

    from torchtailor.cli.ui import print_json
    from torchtailor.verification.doctor import doctor

    if last and message is not None:
        raise UsageError("Give either MESSAGE|LOG or --last.", "`torchtailor history` lists the builds.")
    text = str(_last_log()) if last else message or ""
    report = doctor(sys.stdin.buffer if text == "-" else text, environment=env, machine=source, run=run)
    if json:
        print_json("doctor", report)
    else:
        _print(report)
    if report.problems:
        return ExitCode.CHECK_FAILED
    return ExitCode.NO_MATCH if report.unexplained else ExitCode.OK


def _last_log() -> Path:
    """The log of the newest attempt that left one."""
    from torchtailor.building.ledger.ledger import Ledger

    logs = [Path(attempt.log) for attempt in Ledger().attempts() if attempt.log]
    if not logs:
        raise NoMatchError("No build has left a log yet.", "Give the path of a build log.")
    return logs[-1]


def _print(report: DoctorReport) -> None:
    from rich.text import Text

    from torchtailor.cli.ui import hanging, out

    console = out()

    def say(head: str, style: str, text: str, of_text: str = "") -> None:
        console.print(hanging(Text.assemble((f"{head:9}", style), (text, of_text)), 9))

    if report.machine:
        say("machine", "bold", report.machine)
        say("torch", "bold", report.torch)
        console.print()
    for number, problem in enumerate(report.problems):
        if number:
            console.print()
        say("problem", "bold red", problem.cause)
        if problem.seen:
            say("", "", f"It explains: {problem.seen}", "dim")
        for place, fix in enumerate(problem.fixes):
            say("or" if place else "fix", "bold", fix.text)
            for row in (fix.toml or "").splitlines():
                console.print(Text(f"           {row}", style="cyan"), soft_wrap=True)
            if fix.command:
                console.print(Text(f"           {fix.command}", style="bold green"), soft_wrap=True)
    for line in report.healthy:
        say("ok", "bold green", line)
    for line in report.unexplained:
        say("unknown", "bold yellow", f"This message is not known: {line}")
    if report.unexplained and not report.problems:
        say(
            "next",
            "bold",
            "If this is all, it may be an error of the program itself; else give the log that holds it, or its path.",
        )
    if report.log is not None and not report.log.clean:
        _print_log(report.log)


def _print_log(log: Diagnosis) -> None:
    """Where in a log the cause is, and what else it shows."""
    from rich.text import Text

    from torchtailor.cli.ui import out

    console = out()
    if log.finding is not None:
        threads = [one for one in log.finding.source.split("; ") if "#" in one]  # that a reader can look up
        sure = "; ".join([log.finding.confidence, *threads])
        console.print(Text.assemble(("failure  ", "bold"), f"{log.finding.failure} ({sure})"))
    if log.lines > 1:
        marked = log.finding.line if log.finding else log.first_error.number if log.first_error else 0
        console.print()
        for line in log.context:
            sign = ">" if line.number == marked else " "
            console.print(Text(f"{sign} {line.number:>7}  {line.text[:300]}", style="bold" if sign == ">" else ""))
    if log.others:
        also = ", ".join(f"{other.failure} (line {other.line})" for other in log.others)
        console.print(f"\nAlso found, later or less certain: {also}.", markup=False)
    if log.finding is not None and log.end is not None and log.end.number > log.finding.line:
        console.print(f"The log ends with another error, which is not known: {log.end.text[:300]}", markup=False)
    if log.percent is not None:
        console.print(f"The build had reached {log.percent:.0f} %.", markup=False)
