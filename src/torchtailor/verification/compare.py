"""Compares the op suite's results of a tailored torch with those of the stock one, case by case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from torchtailor.core.errors import BadInputError
from torchtailor.verification.suite_results import CaseResult, SuiteResults, steady

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class CaseVerdict(Enum):
    """What became of a case."""

    IDENTICAL = "identical"  # bit for bit, where stock repeats itself
    CLOSE = "close"  # stock does not repeat itself; within tolerance of the reference
    DIFFERS = "differs"  # stock repeats itself, and this is something else
    LOST = "lost"  # this does not pass, and stock passed or failed for another reason
    GAINED = "gained"  # this passes and stock does not
    NEITHER = "neither"  # applies to neither, or fails in both in the same way

    @property
    def bad(self) -> bool:
        return self in (CaseVerdict.DIFFERS, CaseVerdict.LOST)


@dataclass(frozen=True, slots=True)
class CaseComparison:
    """One case in both builds."""

    name: str
    library: str
    verdict: CaseVerdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cases of a tailored build against stock."""

    cases: tuple[CaseComparison, ...]

    @property
    def bad(self) -> tuple[CaseComparison, ...]:
        return tuple(case for case in self.cases if case.verdict.bad)

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.library for case in self.cases))

    def of(self, library: str) -> tuple[CaseComparison, ...]:
        return tuple(case for case in self.cases if case.library == library)

    def count(self, verdict: CaseVerdict) -> int:
        return Counter(case.verdict for case in self.cases)[verdict]

    def summary(self) -> str:
        """`560 identical, 8 close, 2 neither`."""
        return ", ".join(f"{self.count(verdict)} {verdict.value}" for verdict in CaseVerdict if self.count(verdict))


def compare(stock: Sequence[SuiteResults], tailored: SuiteResults) -> Comparison:
    """Hold a build against runs of stock; the more of those, the surer it is which cases repeat themselves."""
    usable = usable_runs(stock)
    if not usable:
        raise BadInputError("There is no result of the stock build to compare with.", "Run the suite on it first.")
    return Comparison(tuple(_compare(usable, tailored)))


def usable_runs(runs: Sequence[SuiteResults]) -> tuple[SuiteResults, ...]:
    """The runs that say something of the build: on a device that could be used."""
    return tuple(run for run in runs if run.unusable is None)


def fails_in_stock(case: CaseResult, stock: Sequence[SuiteResults]) -> bool:
    """Whether a case does not pass for a reason for which it did not pass in some run of stock either."""
    found = (run.by_name.get(case.name) for run in usable_runs(stock))
    return not case.passed and any(
        one is not None and one.outcome == case.outcome and _cause(one) == _cause(case) for one in found
    )


def _cause(case: CaseResult) -> str:
    """The reason without its numbers: sizes and addresses are others in each process."""
    return _NUMBER.sub("#", case.reason)


def _compare(stock: Sequence[SuiteResults], tailored: SuiteResults) -> Iterator[CaseComparison]:
    repeats = steady(stock)
    found = tailored.by_name
    for expected in stock[0].cases:
        case = found.get(expected.name)
        verdict, reason = _judge(expected, case, expected.name in repeats)
        if verdict is CaseVerdict.LOST and case is not None and fails_in_stock(case, stock):
            verdict = CaseVerdict.NEITHER
        yield CaseComparison(expected.name, expected.library, verdict, reason)
    missing_from_stock = [case for case in tailored.cases if case.name not in stock[0].by_name]
    for case in missing_from_stock:
        yield CaseComparison(case.name, case.library, CaseVerdict.NEITHER, "not run on stock")


def _judge(stock: CaseResult, found: CaseResult | None, repeats: bool) -> tuple[CaseVerdict, str]:
    if found is None:
        return CaseVerdict.LOST, "it was not run"
    if not stock.passed:
        if found.passed:
            return CaseVerdict.GAINED, f"stock: {stock.reason}"
        if stock.applies and found.applies:
            return CaseVerdict.LOST, found.reason
        return CaseVerdict.NEITHER, stock.reason
    if not found.passed:
        return CaseVerdict.LOST, found.reason
    if not repeats:
        return CaseVerdict.CLOSE, "stock does not give the same bytes twice"
    if found.outputs == stock.outputs:
        return CaseVerdict.IDENTICAL, ""
    if not found.deterministic:
        return CaseVerdict.DIFFERS, "it does not give the same bytes twice, and stock does"
    changed = sum(left != right for left, right in zip(stock.outputs, found.outputs, strict=False))
    return CaseVerdict.DIFFERS, f"{changed} of {len(stock.outputs)} outputs have other bytes than stock's"
