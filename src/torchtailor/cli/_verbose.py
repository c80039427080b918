"""`-v`: an option of every command, which shows the log of what it does."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from torchtailor.core.version import __version__

_log = logging.getLogger(__name__)
_Verbose = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Say on stderr what is done, and why; -vv says more."
    ),
]


def add_verbose(command: Any) -> None:
    """Give a command, and those of a group, the option."""
    command.params.append(_option())
    for inner in getattr(command, "commands", {}).values():
        add_verbose(inner)


def _option() -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def option(verbose: _Verbose = 0) -> None:
        """Its option is what is wanted."""

    (made,) = typer.main.get_command(app).params
    made.expose_value = False
    made.callback = _begin
    return made


def _begin(context: Any, _: Any, verbosity: int) -> None:
    if verbosity and not context.resilient_parsing:
        context.with_resource(_logged(context.command_path, verbosity))


@contextmanager
def _logged(command: str, verbosity: int) -> Iterator[None]:
    from torchtailor.cli.ui.log import log_on_stderr

    began = time.monotonic()
    with log_on_stderr(verbosity):
        system = f"{platform.system()} {platform.machine()}"
        _log.info("torchtailor %s, Python %s, %s", __version__, platform.python_version(), system)
        try:
            yield
        finally:
            _log.info("%s took %.2f s", command, time.monotonic() - began)
