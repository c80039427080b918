"""build.ninja and .ninja_log: what is to be built, what is built, and a pool for heavy files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.source.tables import FileKind, Tables
from torchtailor.core.disk import new_file

POOL = "torchtailor_heavy"
STATUS = "[%f/%t] "
_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_BUILD = re.compile(r"^build ((?:\$.|[^:$])+):\s*(\S+)")
_OBJECT = re.compile(r"(\S+\.(?:o|so(?:\.[\d.]+)?))$")


@dataclass(frozen=True, slots=True)
class NinjaStatus:
    """A status line of ninja's: how many steps are done, and the last of them."""

    done: int
    total: int
    what: str

    @property
    def output(self) -> str:
        """`Building CXX object c10/a.cpp.o` -> `c10/a.cpp.o`."""
        found = _OBJECT.search(self.what)
        return found[1] if found else ""


def read_status(line: str) -> NinjaStatus | None:
    match = _STATUS.match(line)
    return NinjaStatus(int(match[1]), int(match[2]), match[3].strip()) if match and int(match[2]) else None


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one output took."""

    output: str
    seconds: float


def read_log(build: Path) -> dict[str, Timing]:
    """The outputs that were built, from .ninja_log; an incomplete line is skipped."""
    made: dict[str, Timing] = {}
    try:
        text = (build / ".ninja_log").read_text("utf-8", "replace")
    except OSError:
        return made
    for line in text.splitlines():
        cells = line.split("\t")
        if len(cells) == 5 and cells[0].isdigit() and cells[1].isdigit():
            made[cells[3]] = Timing(cells[3], (int(cells[1]) - int(cells[0])) / 1000)
    return made


def edges(build: Path, tables: Tables) -> dict[str, FileKind]:
    """Every output that is compiled or linked, with its kind."""
    found: dict[str, FileKind] = {}
    for _, outputs in _statements(build / "build.ninja"):
        kind = tables.kind(outputs[0])
        if kind is not None:
            found[outputs[0]] = kind
    return found


def _statements(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Build statements of compilers and linkers: the rule, and the explicit outputs."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if match := _BUILD.match(line):
                outputs = match[1].split(" | ")[0].split()
                if outputs and match[2] not in ("phony", "CUSTOM_COMMAND"):
                    yield match[2], outputs


def write_pool(build: Path, tables: Tables, depth: int) -> int:
    """Put heavy files into a pool of this depth; returns how many. Safe to repeat, also with another depth."""
    path = build / "build.ninja"
    before = path.stat()
    lines: list[str] = []
    heavy = 0
    skipping = False
    for line in path.read_text("utf-8", "surrogateescape").splitlines(keepends=True):
        if line.startswith(f"pool {POOL}"):
            skipping = True
            continue
        if skipping and line.startswith("  depth"):
            skipping = False
            continue
        if line.strip() == f"pool = {POOL}":
            continue
        lines.append(line)
        match = _BUILD.match(line)
        if match and match[2] not in ("phony", "CUSTOM_COMMAND"):
            kind = tables.kind(match[1].split(" | ")[0].split()[0])
            if kind is not None and kind.heavy:
                lines.append(f"  pool = {POOL}\n")
                heavy += 1
    text = f"pool {POOL}\n  depth = {depth}\n" + "".join(lines)
    with new_file(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        # ninja runs CMake again when build.ninja is older than what it was made from: keep its time.
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    return heavy
