"""Waiting for a state instead of for a time: a busy machine makes a test slower, never wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LONG = 300.0  # seconds after which a test may be taken to hang


def wait_until(condition: Callable[[], T], what: str) -> T:
    """Ask until the answer is true, and return it."""
    give_up = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < give_up, f"waited in vain: {what}"
        time.sleep(0.01)
    return found


@contextmanager
def not_hanging(what: str) -> Iterator[None]:
    """End the block with an error where it does not come to its end by itself."""

    def stop(*_: object) -> None:
        raise AssertionError(f"hangs: {what}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes(session: int) -> list[int]:
    """The processes of a session that run."""
    return [pid for pid in _pids() if alive(pid) and _session(pid) == session]


def processes_naming(text: str) -> list[int]:
    """The processes, but for this one, with this text in their command line."""
    found = []
    for pid in _pids():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and text.encode() in line and alive(pid):
            found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
