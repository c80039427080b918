"""The order of preference among candidates, in one place.

What runs is settled before. Then: the way that costs least, the newest release, the instruction set the workload
prefers, native code before compatible before compiled by the driver, a variant named for the GPU (or whose wheel holds
what its name says), the default index's build, a driver that supports it in full, the newest CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchtailor.catalog.gpus import Fit
from torchtailor.catalog.releases import Method
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.recommend.candidates import Candidate, Judgement, judge_all
from torchtailor.recommend.isas import IsaRanking
from torchtailor.recommend.situation import Situation

_WAYS = (Method.WHEEL, Method.SOURCE, Method.NIX)  # cutting a wheel takes minutes, compiling hours
_FITS = (Fit.NATIVE, Fit.COMPATIBLE, Fit.JIT, Fit.NONE)


def preference(candidate: Candidate, isas: IsaRanking) -> tuple[object, ...]:
    """A key that is smallest for the best."""
    variant, driver = candidate.variant, candidate.driver
    return (
        _WAYS.index(candidate.way),
        tuple(-part for part in variant.release.version.parts),
        isas.rank(variant.isa),
        _FITS.index(candidate.fit),
        -candidate.exact,
        _FITS.index(candidate.coverage.fit),
        -(variant.gpu.capability.number if variant.gpu else 0),
        not candidate.default_index,
        driver is not None and driver.fit is not DriverFit.FULL,
        tuple(-part for part in variant.build.cuda.parts) if variant.build.cuda else (),
    )


def ranked(judgements: Iterable[Judgement], isas: IsaRanking) -> tuple[Candidate, ...]:
    """The candidates among the judgements, best first."""
    candidates = (one for one in judgements if isinstance(one, Candidate))
    return tuple(sorted(candidates, key=lambda candidate: preference(candidate, isas)))


def best_candidate(situation: Situation, *, any_driver: bool = False) -> Candidate | None:
    """The best of all variants in a situation."""
    order = ranked(judge_all(situation, any_driver=any_driver), situation.isas)
    return order[0] if order else None
