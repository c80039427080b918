"""Runs jobs in processes that end with this one."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Protocol, TypeVar

from torchtailor.errors import EnvironmentProblem
from torchtailor.surgery.recompress import Slots, share_slots

_WORTH_PROCESSES = 48 << 20  # bytes; below, starting processes takes longer than the work
_PR_SET_PDEATHSIG = 1
_SWITCH_S = 0.0005  # how long a thread that hashes waits for one that computes
_worker: list[int] = []  # the process id of this process, if it is a worker


class SizedJob(Protocol):
    """Work on so many bytes."""

    @property
    def size(self) -> int: ...


JobT = TypeVar("JobT", bound=SizedJob)
ResultT = TypeVar("ResultT")


def run_all(
    function: Callable[[JobT], ResultT], jobs: Sequence[JobT], *, processes: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Results as they come, the largest job started first; the first error ends all.

    The jobs are started before this returns, so that the caller can do something else meanwhile.
    """
    ordered = sorted(jobs, key=lambda job: job.size, reverse=True)
    workers = min(processes, len(ordered))
    if workers < 2 or sum(job.size for job in ordered) < _WORTH_PROCESSES:
        return ((job, function(job)) for job in ordered)
    # forking saves the imports, and is safe only while there are no other threads
    method = "fork" if threading.active_count() == 1 else "spawn"
    context = multiprocessing.get_context(method)
    slots = context.Semaphore(processes)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=(os.getpid(), slots))
    try:
        futures = {pool.submit(function, job): job for job in ordered}
    except BaseException:  # Ctrl-C while they start
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    return _results(pool, futures)


def _results(pool: ProcessPoolExecutor, futures: dict[Future[ResultT], JobT]) -> Iterator[tuple[JobT, ResultT]]:
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "A worker process was killed, perhaps for lack of memory.", "Run it again with --jobs 1."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def tidying_up() -> Iterator[None]:
    """Ctrl-C in this block ends a worker in the normal way, so that it removes what it has staged."""
    if os.getpid() not in _worker:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _begin_worker(parent: int, slots: Slots) -> None:
    _worker[:] = [os.getpid()]
    gc.disable()  # hundreds of thousands of small objects, none of them in a circle
    sys.setswitchinterval(_SWITCH_S)
    _die_with(parent)
    share_slots(slots)


def _die_with(parent: int) -> None:
    """A worker must not go on writing when its parent was killed: the next run may be writing the same files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
