"""The log that `-v` shows on stderr: what is done, where it comes from, what decided, and how long it took."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from torchtailor.cli.ui.console import err, json_lines, print_event
from torchtailor.core.urls import redact

_QUERY = re.compile(r"(\w://[^\s?]*\?)[^\s'\",)]+")  # signed addresses hold credentials behind the question mark


class _StderrHandler(logging.Handler):
    """Writes lines above the progress bars; where stderr has JSON lines, these are some too."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

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
