"""Processes of Dask that begin as a copy of one that has imported what all of them need, for a second less each.

It is a module of its own because each of them imports it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["distributed.cli.dask_worker", "distributed.cli.dask_scheduler", "torchtailor.building.farm.perform"]
)


class Forked:
    """Has what a Popen has."""

    def __init__(
        self, words: tuple[str, ...], log: Path, environment: Mapping[str, str], file_size: int | None = None
    ) -> None:
        self._process = _CONTEXT.Process(target=_dask, args=(words, log, dict(environment), file_size))
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _dask(words: tuple[str, ...], log: Path, environment: dict[str, str], file_size: int | None) -> None:
    """`python -m dask WORDS`, in the folder of its log, with this environment; its files can be so large."""
    import dask.config
    from distributed.config import initialize_logging

    os.chdir(log.parent)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    dask.config.refresh()
    initialize_logging(dask.config.config)
    sys.argv = ["dask", *words]
    runpy.run_module("dask", run_name="__main__", alter_sys=True)
