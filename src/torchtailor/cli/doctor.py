"""`torchtailor doctor`: why torch does not run on this machine, and the command that mends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from torchtailor.doctor.doctor import Finding

_LOG_LIMIT = 8 << 20  # the end of a log holds the error


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
        bool, typer.Option("--run/--no-run", help="Import torch and run one kernel, to see what it says.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say why torch does not run on this machine, and the command that mends it."""
    from torchtailor.catalog import load_catalog
    from torchtailor.doctor.consultation import elsewhere, here
    from torchtailor.doctor.doctor import examine
    from torchtailor.ui import print_json

    catalog = load_catalog()
    text = _read(message)
    patient = elsewhere(source, text) if source is not None else here(catalog, env, text, run=run and not text)
    finding = examine(patient, catalog)
    if json:
        print_json(finding)
    else:
        _print(finding)
    if finding.problems:
        return ExitCode.CHECK_FAILED
    return ExitCode.NO_MATCH if finding.unexplained else ExitCode.OK


def _read(message: str | None) -> str:
    """The message itself, or what is in the file that it names."""
    import sys

    if message is None:
        return ""
    if message == "-":
        return sys.stdin.buffer.read()[-_LOG_LIMIT:].decode("utf-8", "replace")
    try:
        path = Path(message)
        if not path.is_file():
            return message
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_LIMIT))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        if error.strerror == "File name too long":
            return message  # a pasted message, not a path
        raise BadInputError(f"{message} cannot be read: {error.strerror}.", "Paste the message itself.") from error


def _print(finding: Finding) -> None:
    from rich.text import Text

    from torchtailor.ui import out

    console = out()
    console.print(Text.assemble(("machine  ", "bold"), finding.machine))
    console.print(Text.assemble(("torch    ", "bold"), finding.torch))
    for problem in finding.problems:
        console.print()
        console.print(Text.assemble(("problem  ", "bold red"), problem.cause))
        if problem.seen:
            console.print(Text(f"         It explains: {problem.seen}", style="dim"))
        for number, mend in enumerate(problem.mends):
            console.print(Text.assemble(("mend     " if not number else "or       ", "bold"), mend.text))
            if mend.command:
                console.print(Text(f"           {mend.command}", style="bold green"))
    for line in finding.healthy:
        console.print(Text.assemble(("fine     ", "bold green"), line))
    for line in finding.unexplained:
        console.print(Text.assemble(("unknown  ", "bold yellow"), f"Nothing here explains: {line}"))
    if finding.unexplained:
        console.print(Text("         For a build's log there is `torchtailor diagnose LOG`."))
