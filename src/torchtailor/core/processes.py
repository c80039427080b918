"""Runs jobs on all cores, in processes that end with this one."""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.progress import SizedJob

_log = logging.getLogger(__name__)
_WORTH_PROCESSES = 48 << 20  # bytes; below, starting processes takes longer than the work
_ALWAYS_USEFUL = 8  # processes: sizes do not say exactly which job takes longest
_PR_SET_PDEATHSIG = 1
_SWITCH_S = 0.0005  # how long a thread that hashes waits for one that computes
_worker: list[int] = []  # the process id of this process, if it is a worker
_shared: list[Slots] = []  # of a worker, with all others


class Slots(Protocol):
    """A semaphore with a slot for each core that a run may use."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


JobT = TypeVar("JobT", bound=SizedJob)
ResultT = TypeVar("ResultT")


def run_all(
    function: Callable[[JobT], ResultT], jobs: Sequence[JobT], *, processes: int, worth: int | None = None
) -> Iterator[tuple[JobT, ResultT]]:
    """Results as they come, the largest job started first; the first error ends all.

    The jobs are started before this returns, so that the caller can do something else meanwhile. Less than `worth`
    bytes are worked on here, and so is everything in a daemonic process, which may not have children.
    """
    ordered = sorted(jobs, key=lambda job: job.size, reverse=True)
    # More than these end no sooner than the largest job, and on many cores they are in each other's way in the kernel:
    # of 16, 8 took the same time and two thirds of the processor time.
    total = sum(job.size for job in ordered)
    needed = max(_ALWAYS_USEFUL, -(-total // max(1, ordered[0].size))) if ordered else 0
    workers = min(processes, len(ordered), needed)
    enough = _WORTH_PROCESSES if worth is None else worth
    if workers < 2 or total < enough or multiprocessing.current_process().daemon:
        _log.debug("%d jobs, one after the other", len(ordered))
        return ((job, function(job)) for job in ordered)
    # forking saves the imports, and is safe only while there are no other threads
    method = "fork" if threading.active_count() == 1 else "spawn"
    _log.info("%d jobs in %d processes (%s)", len(ordered), workers, method)
    context = multiprocessing.get_context(method)
    try:
        slots = context.Semaphore(processes)
        pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=(os.getpid(), slots))
    except OSError as error:  # a bare chroot: /dev/shm is missing, full or not ours
        _log.warning("one core is used, because processes cannot share semaphores (/dev/shm): %s", error.strerror)
        return ((job, function(job)) for job in ordered)
    try:
        with _killed_workers_explained():
            futures = {pool.submit(function, job): job for job in ordered}
        results = _results(pool, futures)
        next(results)  # from here on it ends the pool, also if it is dropped before anybody asks for a result
    except BaseException:  # Ctrl-C while they start
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    return results


def _results(pool: ProcessPoolExecutor, futures: dict[Future[ResultT], JobT]) -> Iterator[tuple[JobT, ResultT]]:
    """Nothing at first, then the results."""
    try:
        yield cast("Any", None)
        for future in as_completed(futures):
            with _killed_workers_explained():
                result = future.result()
            yield futures[future], result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _killed_workers_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "A worker process was killed, perhaps for lack of memory.",
            "Make room, or use one core: put `taskset -c 0` before the command.",
        ) from error


def core_slots(count: int) -> Slots:
    """A slot for each of so many cores; in a worker, those that all workers share, so that each core is used once."""
    return _shared[0] if _shared else threading.Semaphore(count)


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
    _shared[:] = [slots]


def _die_with(parent: int) -> None:
    """A worker must not go on writing when its parent was killed: the next run may be writing the same files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
