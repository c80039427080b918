"""Compares the op suite's results of a tailored torch with those of the stock one, case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from torchtailor.errors import BadInputError
from torchtailor.verification.suite_results import CaseResult, SuiteResults, steady


class CaseVerdict(Enum):
    """What became of a case."""

    IDENTICAL = "identical"  # bit for bit, where stock repeats itself
    CLOSE = "close"  # stock does not repeat itself; within tolerance of the reference
    DIFFERS = "differs"  # stock repeats itself, and this is something else
    LOST = "lost"  # stock passed and this does not
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
    if not stock:
        raise BadInputError("There is no result of the stock build to compare with.", "Run the suite on it first.")
    return Comparison(tuple(_compare(stock, tailored)))


def _compare(stock: Sequence[SuiteResults], tailored: SuiteResults) -> Iterator[CaseComparison]:
    repeats = steady(stock)
    found = tailored.by_name
    for expected in stock[0].cases:
        others = [run.by_name.get(expected.name) for run in stock[1:]]
        verdict, reason = _judge(expected, found.get(expected.name), expected.name in repeats)
        if verdict is CaseVerdict.LOST and any(other is not None and not other.passed for other in others):
            # It does not pass every time in stock either.
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
