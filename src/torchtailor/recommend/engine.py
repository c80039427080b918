"""Puts a recommendation together: judge, rank, explain."""

from __future__ import annotations

from collections.abc import Sequence

from torchtailor.catalog.gpus import CodeKind, Fit
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.host.model import GpuDevice, Host
from torchtailor.recommend.alternatives import alternatives
from torchtailor.recommend.candidates import Candidate, Judgement, judge_all
from torchtailor.recommend.drivers import judge_driver
from torchtailor.recommend.explain import machine_line, pick, short_label, why
from torchtailor.recommend.isas import IsaRanking, rank_isas
from torchtailor.recommend.ranking import ranked
from torchtailor.recommend.rejections import (
    rejected_builds,
    rejected_gpus,
    rejected_isas,
    rejected_pythons,
    rejected_wheels,
)
from torchtailor.recommend.request import Request
from torchtailor.recommend.result import Pick, Recommendation, Rejection, WayOut
from torchtailor.recommend.unlocks import best_candidate, unlocks
from torchtailor.recommend.ways_out import own_rows, ways_out
from torchtailor.variants import Matrix


def recommend(matrix: Matrix, host: Host, request: Request) -> Recommendation:
    """The variant for a machine, the alternatives, the reasons, and the ways out where there is none."""
    catalog = matrix.catalog
    request.check(catalog)
    isas = rank_isas(catalog.isas.values(), host.cpu.arch, host.cpu.flags, request.workload)
    devices = tuple(gpu for gpu in host.visible_gpus if gpu.compute is not None)
    judgements = tuple(judge_all(matrix, host, devices, isas, request))
    candidates = ranked((one for one in judgements if isinstance(one, Candidate)), isas)
    best = candidates[0] if candidates else None
    cpu = best_candidate(matrix, host, (), isas, request)
    notes = [note.text for note in host.notes]
    if host.gpus and not host.visible_gpus:
        notes.append("The recommendation is for the CPU alone; unset CUDA_VISIBLE_DEVICES to have one for the GPUs.")
    per_gpu = _per_gpu(matrix, host, devices, isas, request)
    focus = devices
    if best is None and per_gpu:
        best, focus = per_gpu[0], tuple(one.device for one in per_gpu[0].devices)
        notes += _choice_notes(matrix, host, devices, best, request)
        judgements = tuple(judge_all(matrix, host, focus, isas, request))
        candidates = ranked((one for one in judgements if isinstance(one, Candidate)), isas)
    return Recommendation(
        machine=machine_line(host),
        workload=request.workload.value,
        python=request.wanted_python,
        best=pick(best, *why(catalog, best, isas, request.workload)) if best else None,
        per_gpu=_per_gpu_picks(per_gpu),
        alternatives=alternatives(best, candidates, cpu) if best else (),
        rejected=_rejected(matrix, host, focus, judgements, best, isas, request),
        unlocks=tuple(unlocks(matrix, host, focus, isas, request, best)),
        ways_out=_ways_out(catalog, host, devices, isas, request, best, cpu),
        notes=tuple(notes),
    )


def _ways_out(
    catalog: Catalog,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    best: Candidate | None,
    cpu: Candidate | None,
) -> tuple[WayOut, ...]:
    """All of them where nothing runs; rows for a variant of one's own where what runs is named for another GPU."""
    if best is None:
        return ways_out(catalog, host, devices, isas, request, cpu)
    return tuple(own_rows(catalog, host, devices, isas, request)) if best.devices and not best.exact else ()


def _rejected(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    judgements: Sequence[Judgement],
    best: Candidate | None,
    isas: IsaRanking,
    request: Request,
) -> tuple[Rejection, ...]:
    found = [*rejected_isas(isas), *rejected_wheels(judgements)]
    if devices:
        found += rejected_builds(matrix.catalog, host, devices, judgements, best, request)
    if best is not None and best.devices:
        found += rejected_gpus(best, judgements)
    return (*found, *rejected_pythons(matrix.catalog, request))


def _per_gpu(
    matrix: Matrix, host: Host, devices: Sequence[GpuDevice], isas: IsaRanking, request: Request
) -> tuple[Candidate, ...]:
    """On a machine with different GPUs, the best for each kind of them, the most capable kind first."""
    kinds: dict[object, list[GpuDevice]] = {}
    for device in devices:
        kinds.setdefault(device.compute, []).append(device)
    if len(kinds) < 2:
        return ()
    groups = sorted(kinds.values(), key=_strength, reverse=True)
    bests = (best_candidate(matrix, host, group, isas, request) for group in groups)
    return tuple(best for best in bests if best is not None)


def _strength(group: Sequence[GpuDevice]) -> tuple[object, ...]:
    """By memory where it is known, then capability: an A100 comes before an RTX 3090."""
    return (max(device.memory or 0 for device in group), group[0].compute, len(group))


def _per_gpu_picks(per_gpu: Sequence[Candidate]) -> tuple[Pick, ...]:
    picks = []
    for candidate in per_gpu:
        labels = ", ".join(short_label(one.device) for one in candidate.devices)
        chosen = ",".join(one.device.uuid or str(one.device.index) for one in candidate.devices)
        reason = f"For {labels} alone: run with CUDA_VISIBLE_DEVICES={chosen}."
        picks.append(pick(candidate, reason, candidate.coverage.text))
    return tuple(picks)


def _choice_notes(
    matrix: Matrix, host: Host, devices: Sequence[GpuDevice], best: Candidate, request: Request
) -> list[str]:
    """What to know where no variant covers all GPUs."""
    chosen = ", ".join(short_label(one.device) for one in best.devices)
    text = (
        f"No single variant runs on all GPUs of this machine. The one recommended is for {chosen}; give the others an "
        "environment of their own, and set CUDA_VISIBLE_DEVICES in each."
    )
    notes = [text]
    if uncut := _uncut_for_all(matrix, host, devices, best.variant.arch, request):
        release, build = uncut
        targets = ",".join(sorted({str(device.compute) for device in devices}))
        notes.append(
            f"The official {build.label} wheel of PyTorch {release.version}, uncut, holds code for all of them: one "
            f"environment for all. `torchtailor tailor --gpu {targets}` cuts it to these alone."
        )
    return notes


def _uncut_for_all(
    matrix: Matrix, host: Host, devices: Sequence[GpuDevice], arch: str, request: Request
) -> tuple[Release, Build] | None:
    """The newest official wheel that runs, as it is, on every GPU."""
    releases = [matrix.catalog.release(request.release)] if request.release else matrix.catalog.releases.values()
    for release in sorted(releases, key=lambda item: item.version, reverse=True):
        default = release.default_index.get(arch)
        for build in sorted(release.cuda_builds, key=lambda item: item.label != default):
            if request.wanted_python in release.pythons and all(
                _runs_uncut(matrix, host, device, build, arch) for device in devices
            ):
                return release, build
    return None


def _runs_uncut(matrix: Matrix, host: Host, device: GpuDevice, build: Build, arch: str) -> bool:
    assert device.compute is not None
    code = matrix.catalog.rules.best(device.compute, build.wheel_codes(arch))
    driver = judge_driver(matrix.catalog, host, device, build).fit
    if code is None or not driver.runs:
        return False
    fit = matrix.catalog.rules.fit(device.compute, code)
    return fit is not Fit.NONE and (code.kind is not CodeKind.PTX or driver is DriverFit.FULL)
