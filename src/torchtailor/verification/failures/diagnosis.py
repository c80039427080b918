"""Finds the first real error of a log and what it means.

The last line of a failed build says that it failed, not why. So every line is looked at once, in order: known failures
are noted where they are, tools' own summaries ("ninja: build stopped", "subcommand failed") never count, and of the
failures found the one of the lowest rank that comes first is the cause. What a program says in passing (a warning)
comes after what ended it, and is no cause where the log ends with another exception.
"""

from __future__ import annotations

import io
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import IO

from torchtailor.verification.failures.known import (
    AutoFix,
    FailureTable,
    KnownFailure,
    Pattern,
    error_patterns,
    load_failures,
    load_table,
    names_of,
    summary_patterns,
    with_toolkits,
)
from torchtailor.verification.failures.literals import Literals
from torchtailor.verification.failures.log import (
    MAX_LINE,
    LogLine,
    blocks,
    clean,
    in_passing,
    last_percent,
    looks_like_an_error,
)

_log = logging.getLogger(__name__)
CONTEXT_BEFORE, CONTEXT_AFTER = 4, 6
_TEXT_SHOWN = 500
_SHORT = 100  # lines: what somebody chose to show; of a long log the words of any line say nothing
_SYMPTOM, _REMARK = 3, 4  # ranks of what has a cause elsewhere, and of what builds that succeed print too
_EXCEPTIONS = (b"Error: ", b"Exception: ")  # of the patterns of errors, those of Python


@dataclass(frozen=True, slots=True)
class FoundFailure:
    """A known failure found in a log or a message."""

    failure: str
    rank: int
    line: int
    text: str
    cause: str
    fix: str
    source: str
    table: FailureTable
    auto: AutoFix | None
    names: Mapping[str, str]  # what the message names: a symbol, a package, an architecture

    @property
    def confidence(self) -> str:
        return {1: "certain", 2: "likely", _REMARK: "a remark"}.get(self.rank, "a symptom")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known after the last line."""

    finding: FoundFailure | None
    others: tuple[FoundFailure, ...]
    first_error: LogLine | None
    context: tuple[LogLine, ...]
    last_line: LogLine | None
    percent: float | None
    lines: int
    doubtful: LogLine | None = None  # the first line of a short log that looks like an error
    end: LogLine | None = None  # the last exception of the log, where it is not known and no known failure follows

    @property
    def known(self) -> bool:
        """Whether the cause is known; what builds that succeed print too is none."""
        return self.finding is not None and self.finding.rank < _REMARK

    @property
    def other_causes(self) -> tuple[FoundFailure, ...]:
        """What else may be a cause: no symptom beside a cause, and no remark."""
        below = _SYMPTOM if self.finding and self.finding.rank < _SYMPTOM else _REMARK
        return tuple(other for other in self.others if other.rank < below)

    @property
    def clean(self) -> bool:
        """Whether the log holds no error at all."""
        return self.first_error is None and self.doubtful is None and not self.known


def diagnose(stream: IO[bytes]) -> Diagnosis:
    """Read a log of any size once and name what went wrong first."""
    reading = _Reading()
    for block in blocks(stream):
        reading.take(block)
    return reading.diagnosis()


def find_failures(text: str, table: FailureTable) -> tuple[FoundFailure, ...]:
    """Every line of a message that a failure of one table explains, in order."""
    reading = _Reading(table, every=True)
    for block in blocks(io.BytesIO(text.encode("utf-8", "replace"))):
        reading.take(block)
    return tuple(hit.found() for hit in reading.hits)


@dataclass
class _Hit:
    """A line that shows a failure, and the lines around it."""

    failure: KnownFailure
    pattern: Pattern
    line: LogLine
    names: dict[str, str]
    passing: bool = False  # said in passing: a warning, after which the program went on
    context: list[LogLine] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.pattern.rank

    @property
    def order(self) -> tuple[int, bool, int]:
        """The cause comes first: what is surest, what ended the program, what was said first."""
        return (max(self.rank, _SYMPTOM) if self.passing else self.rank, self.passing, self.line.number)

    def found(self) -> FoundFailure:
        after = [line.text for line in self.context if line.number > self.line.number]
        names = dict(self.names)
        for regex in self.pattern.then:
            match = next((match for text in after if (match := regex.search(text))), None)
            names |= names_of(match) if match else {}
        cause, fix = self.failure.explain(with_toolkits(names))
        return FoundFailure(
            failure=self.failure.id,
            rank=self.rank,
            line=self.line.number,
            text=self.line.text.strip()[:_TEXT_SHOWN],
            cause=cause,
            fix=fix,
            source=self.failure.source,
            table=self.failure.table,
            auto=self.failure.auto if self.rank < _REMARK else None,
            names=names,
        )


Patterns = Sequence[tuple[KnownFailure | None, Pattern]]


@cache
def _looked_for(table: FailureTable | None) -> tuple[Patterns, Literals]:
    """The patterns of one table or of all, and of errors, those of the lowest rank first, and their literals."""
    failures = load_table(table) if table else load_failures()
    known = [(failure, pattern) for failure in failures for pattern in failure.patterns]
    known.sort(key=lambda pair: pair[1].rank)  # stable: then in the tables' order
    patterns = (*known, *((None, pattern) for pattern in (() if table else error_patterns())))
    return patterns, Literals(pattern.literal for _, pattern in patterns)


class _Reading:
    """What has been learnt from the lines so far; `every` keeps each line that matches, not the first of a failure."""

    def __init__(self, table: FailureTable | None = None, *, every: bool = False) -> None:
        self._patterns, self._literals = _looked_for(table)
        self._every = every
        self._first: LogLine | None = None
        self._doubtful: LogLine | None = None
        self._end: LogLine | None = None  # the last exception, until a known failure follows
        self._first_context: list[LogLine] = []
        self._open: list[tuple[int, list[LogLine]]] = []  # contexts that take more lines, with their last line
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=CONTEXT_BEFORE)
        self._percent: float | None = None
        self._number = 0
        self.hits: list[_Hit] = []

    def take(self, block: bytes) -> None:
        """Look at some whole lines."""
        rows = block.splitlines()
        if self._doubtful is None and self._number + len(rows) <= _SHORT:
            found = (place for place, row in enumerate(rows) if looks_like_an_error(row))
            if (place := next(found, None)) is not None:
                self._doubtful = LogLine(self._number + place + 1, clean(rows[place]))
        literals = self._literals.found_in(block)
        present = [pair for pair in self._patterns if pair[1].literal in literals]
        passed = 0 if present or self._open else max(len(rows) - CONTEXT_BEFORE, 0)
        self._number += passed
        for row in rows[passed:]:
            raw = row[:MAX_LINE]
            self._number += 1
            if self._open:
                self._continue(raw)
            if here := [pair for pair in present if pair[1].literal in raw]:
                self._examine(LogLine(self._number, clean(raw)), here, passing=in_passing(raw))
            self._recent.append((self._number, raw))
        reached = last_percent(rows)
        self._percent = self._percent if reached is None else reached

    def _continue(self, raw: bytes) -> None:
        line = LogLine(self._number, clean(raw))
        for _, context in self._open:
            context.append(line)
        self._open = [(last, context) for last, context in self._open if last > self._number]

    def _examine(self, line: LogLine, patterns: Patterns, *, passing: bool) -> None:
        hit: _Hit | None = None
        is_error = False
        for failure, pattern in patterns:
            if failure is None and (is_error or (self._first and pattern.literal not in _EXCEPTIONS)):
                continue
            if match := pattern.search(line.text):
                is_error = pattern.rank < _REMARK and (
                    failure is not None or not any(row.search(line.text) for row in summary_patterns())
                )
                if failure is not None:
                    hit = _Hit(failure, pattern, line, names_of(match), passing)
                    break
                if is_error and not passing and pattern.literal in _EXCEPTIONS:
                    self._end = line
        if is_error and hit is not None and not passing:
            self._end = None
        first = is_error and self._first is None
        if hit is not None and not (self._every or self._is_news(hit)):
            hit = None
        if not first and hit is None:
            return
        context = [*(LogLine(number, clean(raw)) for number, raw in self._recent), line]
        self._open.append((line.number + CONTEXT_AFTER, context))
        if first:
            self._first, self._first_context = line, context
        if hit is not None:
            hit.context = context
            self.hits.append(hit)

    def _is_news(self, hit: _Hit) -> bool:
        """Whether the failure was not found before, or not as certainly."""
        return all(hit.failure is not other.failure or hit.order[:2] < other.order[:2] for other in self.hits)

    def diagnosis(self) -> Diagnosis:
        chosen = min(self.hits, key=lambda hit: hit.order, default=None)
        if chosen is not None and chosen.passing and self._end is not None and self._end.number > chosen.line.number:
            chosen = None
        for hit in self.hits:
            _log.info("line %d shows %s%s", hit.line.number, hit.failure.id, ", the cause" if hit is chosen else "")
        others = {hit.failure.id: hit for hit in reversed(self.hits) if not chosen or hit.failure is not chosen.failure}
        recent = [LogLine(number, clean(raw)) for number, raw in self._recent]
        return Diagnosis(
            finding=chosen.found() if chosen else None,
            others=tuple(hit.found() for hit in sorted(others.values(), key=lambda hit: hit.line.number)),
            first_error=self._first,
            context=tuple(chosen.context if chosen else self._first_context),
            last_line=next((line for line in reversed(recent) if line.text.strip()), None),
            percent=self._percent,
            lines=self._number,
            doubtful=self._doubtful if self._number <= _SHORT else None,
            end=self._end,
        )
