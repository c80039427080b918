"""Works on several libraries at once, in processes that never outlive this one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from torchtailor.artifact.libraries import is_elf, is_shared_name
from torchtailor.errors import BadInputError, EnvironmentProblem, TorchtailorError
from torchtailor.gpucode.policy import Policy
from torchtailor.surgery.library import Recompress, tailor_library
from torchtailor.surgery.recompress import Slots, share_slots
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailor.outcome import LibraryOutcome

_WORTH_PROCESSES = 48 << 20  # bytes; below, starting processes takes longer than the work
_PR_SET_PDEATHSIG = 1


class Job(Protocol):
    """A piece of work; `size` is in bytes."""

    @property
    def size(self) -> int: ...


JobT = TypeVar("JobT", bound=Job)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class LibraryWork:
    """How to cut one library: everything a worker needs to know."""

    policy: Policy
    strip: bool
    recompress: Recompress | None
    consent_missing: bool = False
    look_only: bool = False  # say what a cut would save, and write nothing; so also where consent is missing
    durable: bool = False  # wait for the disk

    def cut(self, name: str, source: Path, target: Path | None) -> LibraryOutcome:
        """Cut a library that was found in a wheel, a folder or an environment: one that cannot be read is reported,
        not an error."""
        place = None if self.consent_missing or self.look_only else target
        try:
            result = self.cut_strictly(source, place)
        except BadInputError as error:
            return LibraryOutcome.skipped(name, source.stat().st_size, error.message.removeprefix(f"{source}: "))
        except TorchtailorError as error:  # by the name the user knows, not that of a temporary file
            raise type(error)(error.message.replace(str(source), name), error.hint) from error
        return LibraryOutcome.of(name, result, consent_missing=self.consent_missing)

    def cut_strictly(self, source: Path, target: Path | None) -> LibraryResult:
        """Cut a library, or raise; what the disk says is left as it is, to be explained about the user's own paths."""
        try:
            return tailor_library(
                source, target, self.policy, strip=self.strip, recompress=self.recompress, durable=self.durable
            )
        except EnvironmentProblem as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise


def is_library(path: Path) -> bool:
    """Whether a file is named like a shared library and is an ELF file."""
    return is_shared_name(path.name) and is_elf(path)


def run_all(
    function: Callable[[JobT], ResultT], jobs: Sequence[JobT], *, processes: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Results as they come, the largest work begun first; the first error ends all.

    The work is begun before this returns, so that the caller can do something else meanwhile.
    """
    ordered = sorted(jobs, key=lambda job: job.size, reverse=True)
    workers = min(processes, len(ordered))
    if workers < 2 or sum(job.size for job in ordered) < _WORTH_PROCESSES:
        return ((job, function(job)) for job in ordered)
    # forking spares the imports, and is safe only while there are no other threads
    method = "fork" if threading.active_count() == 1 else "spawn"
    context = multiprocessing.get_context(method)
    slots = context.Semaphore(processes)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=(os.getpid(), slots))
    return _results(pool, {pool.submit(function, job): job for job in ordered})


def _results(pool: ProcessPoolExecutor, futures: dict[Future[ResultT], JobT]) -> Iterator[tuple[JobT, ResultT]]:
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "A worker process was ended from outside, perhaps for lack of memory.", "Run it again with --jobs 1."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(parent: int, slots: Slots) -> None:
    _die_with(parent)
    share_slots(slots)


def _die_with(parent: int) -> None:
    """A worker must not go on writing when its parent was killed: the next run may be at the same files already."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
