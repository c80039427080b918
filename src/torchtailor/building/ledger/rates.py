"""How fast this machine downloads and cuts: measured by earlier builds in the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchtailor.building.ledger.ledger import Attempt, Ledger, Result
from torchtailor.catalog.methods import WHEEL
from torchtailor.core.errors import EnvironmentProblem

FETCH_KEY, CUT_KEY = "fetched_per_second", "cut_per_second"
_ATTEMPTS = 50  # of which they are learned


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes of wheels per second; the defaults are those of a home connection and two old cores."""

    fetch: float = 20e6
    cut: float = 40e6


def known_rates(ledger: Ledger) -> Rates:
    """The rates of the last builds; the defaults where the ledger cannot be used."""
    try:
        return learned(ledger.attempts(limit=_ATTEMPTS))
    except EnvironmentProblem:
        return Rates()


def learned(attempts: Iterable[Attempt]) -> Rates:
    """The rates of the last build that measured them."""
    fetch, cut = Rates().fetch, Rates().cut
    for attempt in attempts:
        if attempt.method == WHEEL and attempt.result is Result.DONE:
            fetch = _positive(attempt.configuration.get(FETCH_KEY)) or fetch
            cut = _positive(attempt.configuration.get(CUT_KEY)) or cut
    return Rates(fetch, cut)


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
