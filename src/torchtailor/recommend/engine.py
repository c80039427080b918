"""Puts a recommendation together: judge, rank, explain."""

from __future__ import annotations

from collections.abc import Sequence

from torchtailor.host.model import Host
from torchtailor.recommend.advice import own_rows, ways_out
from torchtailor.recommend.alternatives import alternatives
from torchtailor.recommend.candidates import Candidate, Judgement, judge_all
from torchtailor.recommend.explain import machine_line, pick, why
from torchtailor.recommend.mixed import best_per_kind, choice_notes, picks_per_kind
from torchtailor.recommend.ranking import best_candidate, ranked
from torchtailor.recommend.rejections import (
    rejected_builds,
    rejected_gpus,
    rejected_isas,
    rejected_pythons,
    rejected_wheels,
)
from torchtailor.recommend.request import Request
from torchtailor.recommend.result import Recommendation, Rejection, WayOut
from torchtailor.recommend.situation import Situation
from torchtailor.recommend.upgrades import unlocks
from torchtailor.variants import Matrix


def recommend(matrix: Matrix, host: Host, request: Request) -> Recommendation:
    """The variant for a machine, the alternatives, the reasons, and the ways out where there is none."""
    situation = Situation.of(matrix, host, request)
    judgements = tuple(judge_all(situation))
    candidates = ranked(judgements, situation.isas)
    per_kind = best_per_kind(situation)
    notes = [note.text for note in host.notes]
    if host.gpus and not host.visible_gpus:
        notes.append("The recommendation is for the CPU alone; unset CUDA_VISIBLE_DEVICES to have one for the GPUs.")
    if not candidates and per_kind:
        notes += choice_notes(situation, per_kind[0])
        situation = situation.on([one.device for one in per_kind[0].devices])
        judgements = tuple(judge_all(situation))
        candidates = ranked(judgements, situation.isas)
    best = candidates[0] if candidates else None
    cpu = best_candidate(situation.on(()))
    return Recommendation(
        machine=machine_line(host),
        workload=request.workload.value,
        python=request.wanted_python,
        best=pick(best, *why(situation, best)) if best else None,
        per_gpu=picks_per_kind(per_kind),
        alternatives=alternatives(best, candidates, cpu) if best else (),
        rejected=_rejected(situation, judgements, best),
        unlocks=tuple(unlocks(situation, best)),
        ways_out=_ways_out(situation, best, cpu),
        notes=tuple(notes),
    )


def _ways_out(situation: Situation, best: Candidate | None, cpu: Candidate | None) -> tuple[WayOut, ...]:
    """All of them where nothing runs; rows for a variant of one's own where what runs is named for another GPU."""
    if best is None:
        return ways_out(situation, cpu)
    return tuple(own_rows(situation)) if best.devices and not best.exact else ()


def _rejected(situation: Situation, judgements: Sequence[Judgement], best: Candidate | None) -> tuple[Rejection, ...]:
    found = [*rejected_isas(situation.isas), *rejected_wheels(judgements)]
    if situation.devices:
        found += rejected_builds(situation, judgements, best)
    if best is not None and best.devices:
        found += rejected_gpus(best, judgements)
    return (*found, *rejected_pythons(situation))
