"""What a verification found: one `Check` a line, a `VerifyReport` over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any

from msgspec import Meta, Struct

from torchtailor.core.errors import CheckFailedError

HOST = "host"  # everything in a library that is not GPU code


class Level(Enum):
    """The three levels of proof, each needing more of the machine than the one before."""

    STATIC = "static"
    IMPORT = "import"
    GPU = "gpu"

    @property
    def number(self) -> int:
        """1, 2 or 3, as the command line and the documentation count them."""
        return list(Level).index(self) + 1


class CheckOutcome(Enum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not-applicable"


class Check(Struct, frozen=True):
    """One line of a verification; `details` holds what a script would read."""

    level: Level
    name: str
    outcome: CheckOutcome
    reason: Annotated[str, Meta(description="a sentence")]
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, level: Level, name: str, passed: bool, reason: str = "", /, **details: Any) -> Check:
        """A check that was made, from whether it passed."""
        return cls(level, name, CheckOutcome.PASS if passed else CheckOutcome.FAIL, reason, details)

    @classmethod
    def not_applicable(cls, level: Level, name: str, reason: str, /, **details: Any) -> Check:
        """A check that does not apply to this target or machine, and why."""
        return cls(level, name, CheckOutcome.NOT_APPLICABLE, reason, details)

    @property
    def failed(self) -> bool:
        return self.outcome is CheckOutcome.FAIL


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All checks of one target, in the order in which they were made."""

    target: str
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    asked: Level | None = None  # the level that was asked for by name

    @property
    def passed(self) -> bool:
        """Whether nothing failed; a report in which nothing could be checked has not passed."""
        return not self.failures and any(check.outcome is CheckOutcome.PASS for check in self.checks)

    @property
    def not_reached(self) -> str:
        """Why nothing could be checked at the level that was asked for; empty where something was."""
        if self.asked is None or any(check.outcome is not CheckOutcome.NOT_APPLICABLE for check in self.at(self.asked)):
            return ""
        reasons = dict.fromkeys(check.reason.rstrip(".") for check in self.at(self.asked) if check.reason)
        return "; ".join(reasons) or "a check before it failed"

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.failed)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that have at least one check."""
        return tuple(level for level in Level if self.at(level))

    def at(self, level: Level) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level is level)

    def count(self, outcome: CheckOutcome) -> int:
        return sum(check.outcome is outcome for check in self.checks)

    def plus(self, checks: Iterable[Check], **facts: Any) -> VerifyReport:
        """This report with more checks and facts after its own."""
        return replace(self, checks=(*self.checks, *checks), facts={**self.facts, **facts})

    def summary(self) -> str:
        """`12 passed, 1 failed, 3 not applicable`."""
        counts = [(self.count(outcome), outcome) for outcome in CheckOutcome]
        words = {
            CheckOutcome.PASS: "passed",
            CheckOutcome.FAIL: "failed",
            CheckOutcome.NOT_APPLICABLE: "not applicable",
        }
        return ", ".join(f"{count} {words[outcome]}" for count, outcome in counts)

    def raise_if_failed(self) -> None:
        """Turn failures into the error that gives the command its exit code."""
        if self.passed:
            return
        if not self.failures:
            raise CheckFailedError(
                f"Nothing of {self.target} could be checked on this machine.",
                "The reason is given with each check that was not applicable.",
            )
        first = self.failures[0]
        raise CheckFailedError(
            f"{self.target}: {len(self.failures)} of {len(self.checks)} checks failed,"
            f" the first is {first.name!r}: {first.reason}",
            "Run it again with --json for the details of every check.",
        )
