"""`torchtailor diagnose`: why a build failed, from its log."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from torchtailor.core.errors import BadInputError, ExitCode, NoMatchError, UsageError

if TYPE_CHECKING:
    from torchtailor.verification.failures import Diagnosis


def command(
    log: Annotated[Path | None, typer.Argument(metavar="LOG", help="A build log; `-` reads standard input.")] = None,
    last: Annotated[bool, typer.Option("--last", help="The log of the last build from source.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the cause of a failed build, and the fix, from its log."""
    from torchtailor.cli.ui import print_json
    from torchtailor.verification.failures import diagnose

    if (log is None) == (not last):
        raise UsageError("Give either LOG or --last.", "`torchtailor history` lists the builds.")
    with ExitStack() as stack:
        found = diagnose(_open(log or _last_log(), stack))
    if json:
        print_json("diagnose", found)
    else:
        _print(found)
    if not found.clean and not found.known:
        raise typer.Exit(ExitCode.NO_MATCH)


def _last_log() -> Path:
    """The log of the newest attempt that left one."""
    from torchtailor.building.ledger.ledger import Ledger

    logs = [Path(attempt.log) for attempt in Ledger().attempts() if attempt.log]
    if not logs:
        raise NoMatchError("No build has left a log yet.", "Give the path of a build log.")
    return logs[-1]


def _open(log: Path, stack: ExitStack) -> IO[bytes]:
    import sys

    if str(log) == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(log.open("rb"))
    except OSError as error:
        raise BadInputError(
            f"The log {log} cannot be read: {error.strerror}.", "Give the path of a build log."
        ) from None


def _print(found: Diagnosis) -> None:
    from rich.text import Text

    from torchtailor.cli.ui import out

    console = out()
    where = f" The build had reached {found.percent:.0f} %." if found.percent is not None else ""
    if found.clean:
        console.print(f"No error found in {found.lines} line{'' if found.lines == 1 else 's'}.{where}", markup=False)
        return
    if found.finding:
        console.print(Text.assemble(("cause    ", "bold"), f"{found.finding.cause} ({found.finding.confidence})"))
        console.print(Text.assemble(("fix      ", "bold"), found.finding.fix))
        console.print(Text.assemble(("failure  ", "bold"), f"{found.finding.failure}, from {found.finding.source}"))
    else:
        console.print("This failure is not known. The first error, and the lines around it:", markup=False)
    marked = found.finding.line if found.finding else found.first_error.number if found.first_error else 0
    console.print()
    for line in found.context:
        sign = ">" if line.number == marked else " "
        console.print(Text(f"{sign} {line.number:>7}  {line.text[:300]}", style="bold" if sign == ">" else ""))
    if found.others:
        also = ", ".join(f"{other.failure} (line {other.line})" for other in found.others)
        console.print(f"\nAlso found, later or less certain: {also}.", markup=False)
    if where:
        console.print(where.strip(), markup=False)
