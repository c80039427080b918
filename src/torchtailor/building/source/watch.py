"""What a running build is doing: the files being compiled, for how long, and the memory in use."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.progress import RunningFile

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """A snapshot of the processes of a build."""

    memory: int
    files: tuple[RunningFile, ...]  # the slowest first


def sample(root: int) -> Sample:
    """A snapshot of a process and all its descendants."""
    now = _uptime()
    memory = 0
    files: dict[str, float] = {}
    for pid, started in _family(root):
        memory += _memory(pid)
        output = _output(pid)
        if output:
            files[output] = max(files.get(output, 0.0), now - started)
    slowest = sorted(files.items(), key=lambda item: item[1], reverse=True)
    return Sample(memory, tuple(RunningFile(name, seconds) for name, seconds in slowest))


def _family(root: int) -> Iterator[tuple[int, float]]:
    parents: dict[int, tuple[int, float]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (facts := _facts(int(entry.name))):
            parents[int(entry.name)] = facts
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in parents:
            yield pid, parents[pid][1]
        waiting += children.get(pid, [])


def _facts(pid: int) -> tuple[int, float] | None:
    """Parent and start, in seconds since boot."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    cells = text.rpartition(")")[2].split()  # the name before it may hold anything
    return int(cells[1]), int(cells[19]) / _TICKS


def _memory(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text("ascii").split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _output(pid: int) -> str:
    """What follows -o on a compiler's command line, where it is an object or a library."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    for word, following in itertools.pairwise(words):
        if word == b"-o" and (following.endswith(b".o") or b".so" in following):
            return following.decode("utf-8", "replace")
    return ""


def _uptime() -> float:
    return float((_PROC / "uptime").read_text("ascii").split()[0])
