"""`torchtailor run`: start a program with the hook, where its libraries cannot bring it themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli._layout import GroupedCommand

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=GroupedCommand, context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM ARGUMENTS", help="The program to run.")],
    pack: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="A pack, or a folder of packs; may be repeated.")
    ] = None,
) -> None:
    """Start a program that loads the GPU code it lacks from packs."""
    import os

    from torchtailor.core.errors import EnvironmentProblem, NoMatchError, UsageError
    from torchtailor.workload.pack import PACK_VARIABLE
    from torchtailor.workload.record import check_startable, with_preload

    check_startable(program[0])
    environment = with_preload()
    for path in pack or ():
        if ":" in str(path.absolute()):
            raise UsageError(
                f"{path.absolute()} has a colon in it, which separates the paths of {PACK_VARIABLE}.",
                "Give a link to it that has none.",
            )
        if not path.exists():
            raise NoMatchError(f"{path} does not exist.", "Give a .ttpack file, or the folder that has it.")
    if pack:
        known = [part for part in environment.get(PACK_VARIABLE, "").split(":") if part]
        environment[PACK_VARIABLE] = ":".join([*(str(path.absolute()) for path in pack), *known])
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise EnvironmentProblem(f"{program[0]} cannot be started: {error.strerror}.", "Check its path.") from error
