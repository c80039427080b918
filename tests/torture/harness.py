"""Runs cases in a child with limits of memory and time; a child that dies is a failure of the case it was at."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtailor.core.errors import TorchtailorError

MEMORY = 4 << 30  # bytes of address space
SECONDS = 20.0  # of processor time; on a machine that is busy, a case may take ten times as long
_PATIENCE = 300.0  # until a child that does not even time out is killed


class Torture(ABC):
    """A class of cases: `prepare` runs once, in the child; `attempt` must survive, or raise what a user would read."""

    name: str
    share: float = 1.0  # of the number of cases that is asked for

    @abstractmethod
    def prepare(self, folder: Path) -> None: ...

    @abstractmethod
    def attempt(self, dice: random.Random, folder: Path) -> str:
        """One case; returns how it ended, in a word. AssertionError: something is wrong that nobody was told."""


@dataclass
class Row:
    """What became of the cases of one class."""

    name: str
    tries: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def survived(self) -> int:
        return self.tries - len(self.failures)


class TooSlowError(BaseException):
    """A case took too long; not an Exception, so that no handler takes it for an ordinary error."""


def dice_of(seed: int, name: str, case: int) -> random.Random:
    return random.Random(f"{seed} {name} {case}")


def check_error(error: TorchtailorError) -> None:
    """What a user reads is one sentence, of a length that a person reads."""
    assert error.message.rstrip().endswith((".", "!", "?")) or "\n" in error.message, f"no sentence: {error.message!r}"
    assert len(error.message) < 5000, f"{len(error.message)} letters: {error.message[:100]!r}"
    assert error.code != 1, f"exit code 1: {error.message!r}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TooSlowError(f"more than {seconds:.0f} seconds")

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds))
    before = {number: signal.signal(number, ring) for _, number, _ in timers}
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, number, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def run_class(torture: Torture, seed: int, cases: Sequence[int], *, limited: bool = True) -> Row:
    """Run the cases of a class; a child does as many as it survives."""
    row = Row(torture.name)
    began = time.monotonic()
    left = list(cases)
    while left:
        done = _run_child(torture, seed, left, row, limited=limited)
        left = left[done:]
    row.seconds = time.monotonic() - began
    return row


def run_at_once(torture: Torture, seed: int, cases: Sequence[int], jobs: int) -> Row:
    """The same in several processes; each case is the one it would be alone."""
    parts = [cases[start::jobs] for start in range(min(jobs, len(cases)))]
    if len(parts) < 2:
        return run_class(torture, seed, cases)
    began = time.monotonic()
    with ProcessPoolExecutor(len(parts), multiprocessing.get_context("fork")) as pool:
        rows = list(pool.map(run_class, [torture] * len(parts), [seed] * len(parts), parts))
    whole = Row(torture.name)
    for row in rows:
        whole.tries += row.tries
        whole.ends += row.ends
        whole.failures += row.failures
    whole.seconds = time.monotonic() - began
    return whole


def _run_child(torture: Torture, seed: int, cases: Sequence[int], row: Row, *, limited: bool) -> int:
    reader, writer = os.pipe()
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=_fast_disk()))
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(torture, seed, cases, folder, writer, limited=limited)
    os.close(writer)
    done = 0
    at: int | None = None
    try:
        with os.fdopen(reader, "rb") as lines:
            while True:
                if not select.select([lines], [], [], _PATIENCE)[0]:
                    os.kill(child, signal.SIGKILL)
                    break
                line = lines.readline()
                if not line:
                    break
                said = json.loads(line)
                if "start" in said:
                    at = said["start"]
                    continue
                done += 1
                row.tries += 1
                if "failure" in said:
                    row.failures.append(f"--seed {seed} --only {torture.name} --case {at}: {said['failure']}")
                else:
                    row.ends[said["end"]] += 1
                at = None
    finally:
        _, status = os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
    if at is not None or not done:
        row.tries += 1
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        row.failures.append(f"--seed {seed} --only {torture.name} --case {at}: the process ended with {how}")
        return done + 1
    return done


def _child(torture: Torture, seed: int, cases: Sequence[int], folder: Path, out: int, *, limited: bool) -> None:
    """In the child: never returns."""
    try:
        os.environ |= {"HOME": str(folder), "TORCHTAILOR_CACHE": str(folder / "cache"), "NO_COLOR": "1"}
        os.environ["TORCHTAILOR_STATE"] = str(folder / "state")
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        torture.prepare(folder)
        for case in cases:
            _tell(out, start=case)
            try:
                with time_limit(SECONDS):
                    end = _attempt(torture, dice_of(seed, torture.name, case), folder)
                _tell(out, end=end)
            except BaseException as error:
                last = traceback.extract_tb(error.__traceback__)[-1:]
                where = "".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in last)
                _tell(out, failure=f"{type(error).__name__}: {str(error)[:600]} ({where})")
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _attempt(torture: Torture, dice: random.Random, folder: Path) -> str:
    try:
        return torture.attempt(dice, folder)
    except TorchtailorError as error:
        check_error(error)
        return type(error).__name__


def _tell(out: int, **said: object) -> None:
    os.write(out, json.dumps(said).encode() + b"\n")


def _fast_disk() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def table(rows: Sequence[Row]) -> str:
    """One line a class, as docs/reliability.md holds it."""
    lines = ["| class | tries | survived | failures | how they ended |", "|---|---|---|---|---|"]
    for row in rows:
        ends = ", ".join(f"{end} {number}" for end, number in row.ends.most_common(4))
        lines.append(f"| {row.name} | {row.tries} | {row.survived} | {len(row.failures)} | {ends} |")
    tries, failures = sum(row.tries for row in rows), sum(len(row.failures) for row in rows)
    return "\n".join([*lines, f"| all | {tries} | {tries - failures} | {failures} | |"])
