"""What one change, a driver, a JetPack or a Python, would make possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from torchtailor.catalog.toolkits import DriverFit
from torchtailor.host.model import GpuDevice, Host
from torchtailor.host.tegra import describe_tegra, tegra_table
from torchtailor.recommend.candidates import Candidate, judge_all
from torchtailor.recommend.isas import IsaRanking
from torchtailor.recommend.ranking import preference, ranked
from torchtailor.recommend.request import Request
from torchtailor.recommend.result import Unlock
from torchtailor.variants import Matrix


def best_candidate(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    *,
    any_driver: bool = False,
) -> Candidate | None:
    judged = judge_all(matrix, host, devices, isas, request, any_driver=any_driver)
    order = ranked((one for one in judged if isinstance(one, Candidate)), isas)
    return order[0] if order else None


def unlocks(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    best: Candidate | None,
) -> Iterator[Unlock]:
    """The changes that would lead to something better than `best`, or to anything at all."""
    if not devices:
        return
    yield from _by_driver(matrix, host, devices, isas, request, best)
    yield from _by_jetpack(matrix, host, devices, isas, request, best)
    if request.python is not None:
        yield from _by_python(matrix, host, devices, isas, request, best)


def _better(candidate: Candidate | None, best: Candidate | None, isas: IsaRanking) -> bool:
    if candidate is None:
        return False
    if best is None:
        return True
    newer = candidate.variant.release.version > best.variant.release.version
    return newer and preference(candidate, isas) < preference(best, isas)


def _by_driver(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    best: Candidate | None,
) -> Iterator[Unlock]:
    ideal = best_candidate(matrix, host, devices, isas, request, any_driver=True)
    if ideal is None or not _better(ideal, best, isas):
        return
    variant = ideal.variant
    gain = f"PyTorch {variant.release.version} with CUDA {variant.build.cuda} ({variant.short_name})"
    verdict = ideal.driver
    if verdict is None:
        return
    if verdict.fit is DriverFit.DROPPED_GPU:
        known = [matrix.catalog.gpus[one.device.compute] for one in ideal.devices if one.device.compute]
        branch = min(gpu.last_driver_branch for gpu in known if gpu.last_driver_branch is not None)
        text = f"{verdict.text} A driver of R{branch} brings the GPU back, and {gain} with it."
        yield Unlock(f"driver R{branch}", variant.unique_name, text)
    elif verdict.needs is not None:
        more = f" ({verdict.full} for full support)" if verdict.full and verdict.full > verdict.needs else ""
        text = f"Driver {verdict.needs} or newer{more} unlocks {gain}."
        yield Unlock(f"driver {verdict.needs}", variant.unique_name, text)
    else:
        text = f"A newer driver, one for CUDA {variant.build.cuda}, unlocks {gain}."
        yield Unlock(f"CUDA {variant.build.cuda}", variant.unique_name, text)


def _by_jetpack(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    best: Candidate | None,
) -> Iterator[Unlock]:
    tegra = host.tegra
    chip = tegra_table().find_chip(tegra.chip) if tegra else None
    if tegra is None or chip is None or chip.unified_from is None or tegra.unified:
        return
    unified = describe_tegra(tegra.model, tegra.chip, chip.unified_from)
    ideal = best_candidate(matrix, replace_struct(host, tegra=unified), devices, isas, request)
    if ideal is not None and _better(ideal, best, isas):
        variant = ideal.variant
        text = (
            f"JetPack {unified.jetpack} (L4T R{unified.l4t}) or newer makes this a system that takes the wheels for "
            f"servers: PyTorch {variant.release.version} as {variant.short_name}, whose {ideal.coverage.through} code "
            f"then runs here."
        )
        yield Unlock(f"JetPack {unified.jetpack}", variant.unique_name, text)


def _by_python(
    matrix: Matrix,
    host: Host,
    devices: Sequence[GpuDevice],
    isas: IsaRanking,
    request: Request,
    best: Candidate | None,
) -> Iterator[Unlock]:
    """The default Python, where the one asked for stands in the way."""
    free = replace(request, python=None)
    if free.wanted_python == request.python or (
        request.release and free.wanted_python not in matrix.catalog.release(request.release).pythons
    ):
        return
    ideal = best_candidate(matrix, host, devices, isas, free)
    if ideal is not None and _better(ideal, best, isas):
        text = (
            f"Python {free.wanted_python} unlocks PyTorch {ideal.variant.release.version} ({ideal.variant.short_name})."
        )
        yield Unlock(f"Python {free.wanted_python}", ideal.variant.unique_name, text)
