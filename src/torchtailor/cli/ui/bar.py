"""A progress bar for work that is done in other processes."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from torchtailor.cli.ui.console import err, progress
from torchtailor.core.format import human_bytes
from torchtailor.core.progress import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

_log = logging.getLogger(__name__)
_MINUTE = 60.0
_FRAME = 0.1
_LARGE = 1_000_000_000


class ProgressBar(Progress):
    """One bar at a time, there from the first second; where nobody watches, a line a minute.

    It is drawn when something is told, and has no thread: processes are forked while it is there.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._progress = progress(quiet=quiet, threads=False)
        self._lines = not quiet and not sys.stderr.isatty()
        self._task: TaskID | None = None
        self._what, self._began, self._told = "", 0.0, 0.0
        self._done = self._total = 0

    def __enter__(self) -> ProgressBar:
        self.begin("Looking at files", 0)  # which takes seconds where the machine is busy
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._end_phase()

    def _end_phase(self) -> None:
        if self._what:
            _log.info("%s (%s): %.2f s", self._what, human_bytes(self._total), time.monotonic() - self._began)
        self._what = ""

    def begin(self, what: str, total: int) -> None:
        self._end_phase()
        self._what, self._done, self._total = what, 0, total
        self._began = self._told = time.monotonic()
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total or None)
        self._progress.start()
        self._progress.refresh()
        if self._lines and total >= _LARGE:  # seconds at least: a line before the first of them
            err().print(f"{what}: {human_bytes(total)} ...", markup=False)

    def advance(self, size: int) -> None:
        self._done += size
        if self._task is not None:
            self._progress.advance(self._task, size)
        self._tell()

    def reading(self, library: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, description=library)
        self._tell(library)

    def _tell(self, library: str = "") -> None:
        now = time.monotonic()
        if now - self._told < (_MINUTE if self._lines else _FRAME):
            return
        self._told = now
        self._progress.refresh()
        if self._lines and self._total:
            at = f", at {library}" if library else ""
            done = f"{human_bytes(self._done)} of {human_bytes(self._total)}"
            err().print(f"{self._what}: {done}{at} ...", markup=False)
