"""How much of a compile job is left, said by the worker that runs it while it runs."""

from __future__ import annotations

import time
from contextlib import suppress

from torchtailor.core.progress import CompileProgress, Progress

TOPIC = "torchtailor-progress"
_EVERY = 1.0  # seconds


class ToldProgress(Progress):
    """Tells who drives the farm how many files of a job are left; outside of Dask's workers, nobody."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._told = 0.0
        self._left: int | None = None

    def compiling(self, progress: CompileProgress) -> None:
        left = progress.total - progress.done
        if left == self._left or time.monotonic() - self._told < _EVERY:
            return
        self._left, self._told = left, time.monotonic()
        with suppress(ImportError, ValueError):  # no Dask, or no worker of it
            from distributed import get_worker

            get_worker().log_event(TOPIC, {"job": self._job, "left": left})
