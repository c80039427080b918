"""Instruction sets: which ones a CPU runs, in what order a workload prefers them, what is missing for the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchtailor.catalog.cpus import Isa
from torchtailor.recommend.request import Workload


@dataclass(frozen=True, slots=True)
class IsaRanking:
    """The instruction sets of a CPU's platform: those it runs, best first, and those it does not."""

    runnable: tuple[Isa, ...]
    lacking: tuple[tuple[Isa, tuple[str, ...]], ...]

    def rank(self, isa: Isa) -> int:
        """0 for the best; only for one that runs."""
        return self.runnable.index(isa)

    def runs(self, isa: Isa) -> bool:
        return isa in self.runnable


def rank_isas(isas: Iterable[Isa], arch: str, flags: Iterable[str], workload: Workload) -> IsaRanking:
    """Those made for the workload first, then by the general instruction set that each is or builds on."""
    words = frozenset(flags)
    ours = [isa for isa in isas if isa.arch == arch]
    places = {isa.name: place for place, isa in enumerate(ours)}

    def demand(isa: Isa) -> tuple[int, int]:
        return (len(isa.requires), places[isa.name])

    def preference(isa: Isa) -> tuple[object, ...]:
        special = workload is not Workload.GENERAL and workload.value in isa.workloads
        base = max((other for other in ours if _general(other) and isa.includes(other)), key=demand, default=isa)
        return (special, demand(base), _general(isa), demand(isa))

    runnable = sorted((isa for isa in ours if isa.runs_on(words)), key=preference, reverse=True)
    lacking = sorted((isa for isa in ours if not isa.runs_on(words)), key=demand, reverse=True)
    return IsaRanking(tuple(runnable), tuple((isa, isa.missing_from(words)) for isa in lacking))


def _general(isa: Isa) -> bool:
    return Workload.GENERAL.value in isa.workloads
