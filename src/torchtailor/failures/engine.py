"""Finds the first real error of a log and what it means.

The last line of a failed build says that it failed, not why. So every line is looked at once, in order: known failures
are noted where they stand, tools' own summaries ("ninja: build stopped", "subcommand failed") never count, and of the
findings the one of the lowest rank that comes first is the cause.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from torchtailor.failures.failures import AutoMend, Failure, load_failures
from torchtailor.failures.log import Line, blocks, clean, percent

CONTEXT_BEFORE, CONTEXT_AFTER = 4, 6
_MOST_FINDINGS = 50

# A line can hold an error only if one of these stands in it, in any case; all others are passed over at once.
_TELLING = tuple(
    word.strip().encode()
    for word in [
        "error",
        " fatal",
        " fail",
        " kill",
        " sigill",
        " illegal",
        " undefined",
        " unbound",
        " cannot ",
        " could not",
        " not found",
        " no such",
        " no module",
        " no matching",
        " no space",
        " no cmake",
        " no solution",
        " missing",
        " unsupported",
        " unknown",
        " not available",
        " not supported",
        " not compatible",
        " no kernel",
        " unable",
        " unrecognized",
        " required",
        " requires",
        " refusing",
        " mismatch",
        " permission",
        " read-only",
        " truncated",
        " out of range",
        " got:",
        " code 137",
        " code: 137",
        " with 137",
        " error 137",
        " bad_alloc",
        " exhausted",
        " oom-kill",
        " insufficient",
        " too old",
        " removed from",
        " different than",
        " does not",
        " temporary failure",
        " certificate",
        " enospc",
        " quota",
        " skew",
        " dirty",
        " device driver",
        " invalid runtime",
        " _compiler",
        " submodule",
        " sve_unavailable",
        " isa extension",
        " conflicting",
        " not resolve",
        " resolutionimpossible",
        " protobuf_version",
        " protoc",
    ]
)
# What only reports that something else failed; a known failure may still be read off it (a symptom).
_SUMMARY = re.compile(
    r"^(?:ninja: build stopped|g?make(?:\[\d+\])?: \*\*\*|subprocess\.CalledProcessError|"
    r"error: subprocess-exited-with-error|ERROR: Failed building wheel|error: builder for|error: \d+ dependencies|"
    r"ERROR: failed to solve|collect2: error: ld returned|error: Recipe|error: metadata-generation-failed|"
    r"-- Configuring incomplete|error: Build failed|RuntimeError: Error compiling objects|note: This error originates)"
)
# What is an error, whatever it means; compilers' command lines and warnings are not.
_GENERIC = re.compile(
    r"(?:^|\s)(?:\S+:\d+(?::\d+)?|\S*(?:ld|collect2|cc1plus|nvcc|ptxas|c\+\+|g\+\+|gcc|clang)\S*): (?:fatal )?error\b|"
    r"^(?:fatal )?error:|^CMake Error|^FAILED: |^[A-Za-z_.]*(?:Error|Exception): |nvcc (?:fatal|error)|ptxas fatal|"
    r"^ERROR: |undefined reference|^Traceback|^\S+: command not found"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A known failure found in the log."""

    failure: str
    rank: int
    line: int
    text: str
    cause: str
    mend: str
    source: str
    auto: AutoMend | None

    @property
    def confidence(self) -> str:
        return {1: "certain", 2: "likely"}.get(self.rank, "a symptom")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known after the last line."""

    finding: Finding | None
    others: tuple[Finding, ...]
    first_error: Line | None
    context: tuple[Line, ...]
    percent: float | None
    lines: int

    @property
    def known(self) -> bool:
        return self.finding is not None

    @property
    def clean(self) -> bool:
        """Whether the log holds no error at all."""
        return self.finding is None and self.first_error is None


def diagnose(stream: IO[bytes]) -> Diagnosis:
    """Read a log of any size once and say what went wrong first."""
    reading = _Reading()
    for block in blocks(stream):
        if _telling(block) or reading.wants_context:
            for raw in block.splitlines():
                reading.take(raw)
        else:
            reading.pass_over(block)
    return reading.diagnosis()


def _telling(raw: bytes) -> bool:
    lowered = raw.lower()
    return any(word in lowered for word in _TELLING)


class _Reading:
    """What has been learnt from the lines so far."""

    def __init__(self) -> None:
        self._failures = load_failures()
        self._findings: list[Finding] = []
        self._first_error: Line | None = None
        self._contexts: dict[int, list[Line]] = {}
        self._recent: deque[Line] = deque(maxlen=CONTEXT_BEFORE)
        self._percent: float | None = None
        self._number = 0

    @property
    def wants_context(self) -> bool:
        """Whether the lines that follow still belong to an error just seen."""
        return bool(self._contexts) and self._number < max(self._contexts) + CONTEXT_AFTER

    def pass_over(self, block: bytes) -> None:
        """Count the lines of a block without anything telling, and remember its end."""
        rows = block.splitlines()
        self._number += len(rows) - CONTEXT_BEFORE if len(rows) > CONTEXT_BEFORE else 0
        for raw in rows[-CONTEXT_BEFORE:]:
            self._remember(raw)

    def take(self, raw: bytes) -> None:
        """Look at one line."""
        before = tuple(self._recent)
        line = self._remember(raw)
        for start, kept in self._contexts.items():
            if line.number <= start + CONTEXT_AFTER:
                kept.append(line)
        if not _telling(raw):
            return
        found = _known(self._failures, line) if len(self._findings) < _MOST_FINDINGS else None
        is_error = found is not None or bool(_GENERIC.search(line.text) and not _SUMMARY.match(line.text))
        if found:
            self._findings.append(found)
        if is_error and self._first_error is None:
            self._first_error = line
        if is_error and (found or self._first_error is line):
            self._contexts.setdefault(line.number, [*before, line])

    def _remember(self, raw: bytes) -> Line:
        self._number += 1
        line = Line(self._number, clean(raw))
        self._percent = percent(line.text) or self._percent
        self._recent.append(line)
        return line

    def diagnosis(self) -> Diagnosis:
        chosen = min(self._findings, key=lambda finding: (finding.rank, finding.line), default=None)
        at = chosen.line if chosen else self._first_error.number if self._first_error else -1
        others = {item.failure: item for item in self._findings if chosen and item.failure != chosen.failure}
        return Diagnosis(
            finding=chosen,
            others=tuple(others.values()),
            first_error=self._first_error,
            context=tuple(self._contexts.get(at, ())),
            percent=self._percent,
            lines=self._number,
        )


def _known(failures: Iterable[Failure], line: Line) -> Finding | None:
    """The first known failure of the lowest rank that this line shows."""
    best: Finding | None = None
    for failure in failures:
        if best and failure.rank >= best.rank:
            continue
        if match := failure.match(line.text):
            cause, mend = failure.explain(match)
            text = line.text.strip()[:500]
            best = Finding(failure.id, failure.rank, line.number, text, cause, mend, failure.source, failure.auto)
    return best
