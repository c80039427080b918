"""Makes a recommendation: judge every variant, take the best, and say what else there is."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from torchtailor.advise.host.model import GpuDevice, Host
from torchtailor.advise.host.system import NOT_LINUX
from torchtailor.advise.recommendation.alternatives import alternatives, other_variants
from torchtailor.advise.recommendation.candidates import (
    Candidate,
    Judgement,
    Refusal,
    Refused,
    best_candidate,
    best_of_other_pythons,
    judge_all,
    ranked,
)
from torchtailor.advise.recommendation.explain import (
    command,
    compiling,
    machine_line,
    pick,
    short_label,
    stock_command,
    why,
)
from torchtailor.advise.recommendation.hypothetical import GivenParts, resolve_host
from torchtailor.advise.recommendation.rejections import NO_WHEEL_OF_IT, rejected
from torchtailor.advise.recommendation.request import Request, Situation, Workload
from torchtailor.advise.recommendation.result import Pick, Recommendation, Rejection
from torchtailor.advise.recommendation.upgrades import upgrades_of
from torchtailor.catalog.load import Catalog, load_catalog
from torchtailor.catalog.methods import Basis
from torchtailor.catalog.releases import Build
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.catalog.variants import Matrix, matrix_of

_log = logging.getLogger(__name__)


def recommend(
    host: Host | None = None,
    *,
    gpus: str | Sequence[str] = (),
    cpu: str | None = None,
    driver: str | None = None,
    jetpack: str | None = None,
    workload: Workload = Workload.GENERAL,
    python: str | None = None,
    release: str | None = None,
    method: str | None = None,
    into: str | None = None,
    here: bool = False,
    catalog: Catalog | None = None,
) -> Recommendation:
    """The variant for a machine, with reasons, other variants, upgrades, and alternatives where nothing fits.

    The machine is a description (`host`) or this one, with the parts that are given changed: `gpus` by name or
    capability (`RTX 4090`, `9.0`, `none`), `cpu` by name (`zen4`), `driver` and `jetpack` by version. GPUs or a CPU
    given without a host describe a machine of their own, and nothing is detected. `into` is the environment that the
    command in the answer names; with `here` it leaves the choice to `install` itself.
    """
    known = catalog or load_catalog()
    machine = resolve_host(
        known, host, GivenParts((gpus,) if isinstance(gpus, str) else tuple(gpus), cpu, driver, jetpack)
    )
    found = recommend_for(matrix_of(known), machine, Request(workload, python, release, method, into, here))
    _log.info("%s: %s", found.machine, found.best.variant if found.best else "nothing fits")
    for reason in found.best.reasons if found.best else ():
        _log.info("because: %s", reason)
    for rejection in found.rejected:
        _log.debug("not %s: %s", rejection.what, rejection.reason)
    return found


def recommend_for(matrix: Matrix, host: Host, request: Request) -> Recommendation:
    """The same for a machine that is known."""
    situation = Situation.of(matrix, host, request)
    notes = [note.text for note in host.notes if note.topic != NOT_LINUX]  # that one is the alternative
    judgements = tuple(judge_all(situation))
    candidates = ranked(judgements, situation.isas)
    kinds = _kinds(situation)
    per_kind = _best_per_kind(situation, kinds)
    picks = tuple(_pick_of_kind(situation, best_of_kind) for best_of_kind in per_kind)
    if not candidates and (other := best_of_other_pythons(situation)) is not None:  # what runs on all runs on each
        python = other.variant.python
        what = "in one environment for all GPUs " if any(one.python != python for one in picks) else ""
        notes.append(
            f"Nothing runs {what}for Python {request.wanted_python}: the recommendation is for Python {python}."
        )
        situation = situation.for_python(python)
        judgements = tuple(judge_all(situation))
        candidates = ranked(judgements, situation.isas)
    if host.gpus and not host.visible_gpus:
        notes.append("The recommendation is for the CPU alone; unset CUDA_VISIBLE_DEVICES to include the GPUs.")
    every = situation
    if not candidates and per_kind:
        notes.append(_one_kind_note(per_kind))
        notes += _left_out(situation, kinds, per_kind)
        situation = situation.on([device.device for device in per_kind[0].devices])
        judgements = tuple(judge_all(situation))
        candidates = ranked(judgements, situation.isas)
    best = candidates[0] if candidates else None
    if best is None and situation.devices and host.system.linux:
        notes += _why_nothing(situation, judgements)
    cpu = best_candidate(situation.on(()))
    refused = rejected(situation, judgements, best)
    return Recommendation(
        machine=machine_line(host),
        workload=request.workload.value,
        python=situation.request.wanted_python,
        best=pick(best, *why(situation, best), *_why_no_wheel(situation, best, refused)) if best else None,
        per_gpu=picks,
        other_variants=other_variants(best, candidates, cpu) if best else (),
        rejected=refused,
        upgrades=upgrades_of(situation, best, every),
        alternatives=alternatives(situation, best, cpu),
        notes=tuple(notes),
        compiling=compiling(situation, best),
        command=command(best, request) if best else None,
        stock_command=stock_command(best, matrix.catalog.wheel_index) if best else None,
    )


def _cuda_builds(situation: Situation) -> Iterator[Build]:
    """All builds with CUDA, the newest release's first."""
    return (build for release in situation.releases for build in release.cuda_builds)


def _why_no_wheel(situation: Situation, best: Candidate, refused: Sequence[Rejection]) -> Iterator[str]:
    """Why something is compiled for hours although there are official wheels, where nobody asked for that."""
    if best.method.basis is Basis.WHEEL or situation.request.method is not None or not best.devices:
        return
    this = f"{best.variant.release.version} {best.variant.build.label}"
    others = [one for one in refused if one.what.startswith("PyTorch") and one.reason != NO_WHEEL_OF_IT]
    found = sorted(others, key=lambda one: this not in one.what.removeprefix("PyTorch ").split(", "))
    if found and situation.host.system.libc != "musl":  # of which a note tells
        yield f"No official wheel runs here: {found[0].reason}"


def _kinds(situation: Situation) -> tuple[tuple[GpuDevice, ...], ...]:
    """The GPUs by their kind, the strongest first; none where there is but one kind."""
    kinds: dict[object, list[GpuDevice]] = {}
    for device in situation.devices:
        kinds.setdefault(device.compute, []).append(device)
    return tuple(map(tuple, sorted(kinds.values(), key=_strength, reverse=True))) if len(kinds) > 1 else ()


def _best_per_kind(situation: Situation, kinds: Sequence[Sequence[GpuDevice]]) -> tuple[Candidate, ...]:
    """The best for each kind of GPU, for another Python where the default one has nothing; those come last."""
    bests = [(best_candidate(situation.on(kind)), kind) for kind in kinds]
    others = (best_of_other_pythons(situation.on(kind)) for best, kind in bests if best is None)
    return (*(best for best, _ in bests if best), *(other for other in others if other))


def _strength(group: Sequence[GpuDevice]) -> tuple[object, ...]:
    """By memory where it is known, then capability: an A100 comes before an RTX 3090."""
    return (max(device.memory or 0 for device in group), group[0].compute, len(group))


def _pick_of_kind(situation: Situation, candidate: Candidate) -> Pick:
    """The best for one kind of GPU, with how to run it."""
    labels = ", ".join(short_label(device.device) for device in candidate.devices)
    chosen = ",".join(device.device.uuid or str(device.device.index) for device in candidate.devices)
    python = candidate.variant.python
    other = f" in an environment with Python {python}" if python != situation.request.wanted_python else ""
    reason = f"For {labels} alone{other}: run with CUDA_VISIBLE_DEVICES={chosen}."
    return pick(candidate, reason, candidate.coverage.text)


def _one_kind_note(per_kind: Sequence[Candidate]) -> str:
    """What to know where no variant covers all GPUs and one kind was chosen."""
    names = ", ".join(short_label(device.device) for device in per_kind[0].devices)
    text = f"No single variant runs on all GPUs of this machine. The recommended one is for {names}"
    if len(per_kind) > 1:
        text += "; give the others an environment of their own, and set CUDA_VISIBLE_DEVICES in each"
    return f"{text}."


def _left_out(
    situation: Situation, kinds: Sequence[Sequence[GpuDevice]], per_kind: Sequence[Candidate]
) -> Iterator[str]:
    """The GPUs that nothing runs on, each with the reason."""
    served = {device.device for best in per_kind for device in best.devices}
    for kind in kinds:
        if not served.isdisjoint(kind):
            continue
        labels = ", ".join(map(short_label, kind))
        alone = situation.on(kind)
        reasons = _why_nothing(alone, tuple(judge_all(alone))) or ("it is not in the matrix.",)
        yield f"Nothing runs on {labels}: {reasons[0]}"


def _why_nothing(situation: Situation, judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """Why no build runs on these GPUs: what rules out all of them, else what rules out the newest."""
    builds = tuple(_cuda_builds(situation))
    verdicts = [situation.driver(device, build) for device in situation.devices for build in builds]
    unknown = [one.text for one in verdicts if one.before_gpu or one.fit is DriverFit.DROPPED_GPU]
    if unknown:
        return tuple(dict.fromkeys(unknown))
    found = [one for one in rejected(situation, judgements, None) if one.what.startswith("PyTorch")]
    python = [f"{one.what}: {one.reason}" for one in found if one.reason.startswith("Not available for Python")]
    reasons = [one.reason for one in found]
    if not any(one.fit.runs for one in verdicts):  # the driver is too old, even for the oldest CUDA
        lacking = sorted((one.needs, one.text) for one in verdicts if one.needs and one.text in reasons)
        reasons = [text for _, text in lacking] or reasons
    servers = [
        judgement.text for judgement in judgements if isinstance(judgement, Refusal) and judgement.kind is Refused.TEGRA
    ]
    return tuple((servers or python or reasons)[:1])
