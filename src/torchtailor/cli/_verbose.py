"""`-v`, an option of every command: on stderr what is done, from where, what decided, and how long it took."""

from __future__ import annotations

import logging
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from torchtailor.core.urls import redact
from torchtailor.core.version import __version__

_log = logging.getLogger(__name__)
_QUERY = re.compile(r"(\w://[^\s?]*\?)[^\s'\",)]+")  # signed addresses hold credentials behind the question mark
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
    began = time.monotonic()
    with log_on_stderr(verbosity):
        system = f"{platform.system()} {platform.machine()}"
        _log.info("torchtailor %s, Python %s, %s", __version__, platform.python_version(), system)
        try:
            yield
        finally:
            _log.info("%s took %.2f s", command, time.monotonic() - began)


class _StderrHandler(logging.Handler):
    """Writes lines above the progress bars; where stderr has JSON lines, these are some too."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        from torchtailor.cli.ui import err, json_lines, print_event

        message = _QUERY.sub(r"\1****", redact(f" {record.getMessage()}")[1:])  # a text, not a URL: `a@b` stays
        worker = "" if record.processName in (None, "MainProcess") else f" [{record.process}]"
        if json_lines():
            print_event({"kind": "log", "level": record.levelname.lower(), "text": message})
            return
        line = f"{record.relativeCreated / 1000:8.2f} {record.levelname:<5} {record.name.split('.')[1]}{worker}"
        err().print(Text(f"{line}: {message}", style="dim"), soft_wrap=True)


@contextmanager
def log_on_stderr(verbosity: int) -> Iterator[None]:
    """In this block, show what is done and why; with 2, every step and what was not chosen."""
    logger, handler = logging.getLogger("torchtailor"), _StderrHandler()
    before = logger.level
    logger.handlers = [other for other in logger.handlers if not isinstance(other, _StderrHandler)]  # of a group
    logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
