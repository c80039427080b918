"""A progress bar for work that is done in other processes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from torchtailor.cli.ui.console import progress
from torchtailor.core.format import human_bytes
from torchtailor.core.progress import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

_log = logging.getLogger(__name__)


class ProgressBar(Progress):
    """One bar at a time; its thread starts with the first advance, when worker processes have been forked."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress = progress(quiet=quiet)
        self._task: TaskID | None = None
        self._running = False
        self._what, self._began = "", 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._end_phase()

    def _end_phase(self) -> None:
        if self._what:
            _log.info("%s: %.2f s", self._what, time.monotonic() - self._began)

    def begin(self, what: str, total: int) -> None:
        self._end_phase()
        self._what, self._began = f"{what} ({human_bytes(total)})", time.monotonic()
        if self._running:
            self._progress.stop()
            self._running = False
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total)

    def advance(self, size: int) -> None:
        if not self._running:
            self._progress.start()
            self._running = True
        if self._task is not None:
            self._progress.advance(self._task, size)
