"""Runs one command of a build: its output goes to a reader and a log line by line, and all its children end with it."""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.urls import redact

# Becomes the command, after asking the kernel (PR_SET_PDEATHSIG) for SIGTERM when our process ends. It is a program of
# its own, because code that runs in a forked child before exec (preexec_fn) may deadlock where threads are running.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, line = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(143)
os.execvp(line[0], line)
"""


def ending_with_us(line: Sequence[str]) -> tuple[str, ...]:
    """The line that starts this one; the kernel ends it when the thread that started it does."""
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *line)


_log = logging.getLogger(__name__)
_BEAT = 1.0
_GRACE = 10.0
_TAIL = 4000
_MAX_LINE = 1 << 20


class Log:
    """The log of an attempt; where its disk is full, the last lines are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: deque[bytes] = deque(maxlen=_TAIL)
        self.whole = True
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("wb")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()

    def write(self, line: bytes) -> None:
        self.tail.append(line)
        if self.whole:
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:
                self.whole = False

    def say(self, text: str) -> None:
        self.write(f"torchtailor: {text}\n".encode())


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """A command, its working directory, its environment, and what to do where there is no such program."""

    line: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    hint: str = "Install it."


def run(
    command: BuildCommand,
    take: Callable[[str], None],
    *,
    log: Log | None = None,
    beat: Callable[[int], None] = lambda _: None,
) -> int:
    """The exit code (negative: the signal that ended it); `beat` gets the process id about once a second.

    The command has a session of its own: on Ctrl-C we end it and its children. If we are killed, the kernel ends it.
    """
    program = shutil.which(command.line[0], path=command.environment.get("PATH"))
    if program is None:
        raise EnvironmentProblem(f"{command.line[0]} is not an executable program.", command.hint)
    _log.info("running %s in %s", redact(shlex.join(command.line)), command.folder)
    try:
        process = subprocess.Popen(
            ending_with_us((program, *command.line[1:])),
            cwd=command.folder,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentProblem(
            f"{command.line[0]} cannot be started in {command.folder}: {error.strerror}.", "Check that folder."
        ) from error
    write = log.write if log else lambda _: None
    write(f"torchtailor: in {command.folder}: {' '.join(command.line)}\n".encode())
    try:
        _follow(process, write, take, beat)
        return process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        _kill_group(process.pid, signal.SIGKILL)  # no child outlives it
        assert process.stdout is not None
        process.stdout.close()


def _follow(
    process: subprocess.Popen[bytes],
    write: Callable[[bytes], None],
    take: Callable[[str], None],
    beat: Callable[[int], None],
) -> None:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    os.set_blocking(descriptor, False)
    rest = b""
    last = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            ready = selector.select(_BEAT)
            if ready:
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    write(line + b"\n")
                    take(line.decode("utf-8", "replace").rstrip("\r"))
                if len(rest) > _MAX_LINE:
                    write(rest)
                    rest = b""
            elif process.poll() is not None:
                break  # a child of its keeps the pipe open
            if time.monotonic() - last >= _BEAT:
                last = time.monotonic()
                beat(process.pid)
    if rest:
        write(rest + b"\n")
        take(rest.decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT first: ninja then removes incomplete outputs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        _kill_group(process.pid, number)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue
        return


def _kill_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
