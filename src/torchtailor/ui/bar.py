"""A progress bar for work that is done in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtailor.ui.console import progress

if TYPE_CHECKING:
    from rich.progress import TaskID


class ProgressBar:
    """One bar at a time; its thread starts with the first advance, when worker processes have been forked."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress = progress(quiet=quiet)
        self._task: TaskID | None = None
        self._running = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int) -> None:
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
