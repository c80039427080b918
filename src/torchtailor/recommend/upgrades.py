"""What one change, a driver, a JetPack or a Python, would make possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from torchtailor.catalog.toolkits import DriverFit
from torchtailor.host.tegra import describe_tegra, tegra_table
from torchtailor.recommend.candidates import Candidate
from torchtailor.recommend.ranking import best_candidate, preference
from torchtailor.recommend.result import Unlock
from torchtailor.recommend.situation import Situation


def unlocks(situation: Situation, best: Candidate | None) -> Iterator[Unlock]:
    """The changes that would lead to something better than `best`, or to anything at all."""
    if situation.devices:
        yield from _by_driver(situation, best)
        yield from _by_jetpack(situation, best)
        yield from _by_python(situation, best)


def _better(situation: Situation, candidate: Candidate, best: Candidate | None) -> bool:
    if best is None:
        return True
    newer = candidate.variant.release.version > best.variant.release.version
    return newer and preference(candidate, situation.isas) < preference(best, situation.isas)


def _by_driver(situation: Situation, best: Candidate | None) -> Iterator[Unlock]:
    ideal = best_candidate(situation, any_driver=True)
    if ideal is None or ideal.driver is None or not _better(situation, ideal, best):
        return
    variant, verdict = ideal.variant, ideal.driver
    gain = f"PyTorch {variant.release.version} with CUDA {variant.build.cuda} ({variant.short_name})"
    if verdict.fit is DriverFit.DROPPED_GPU:
        known = [situation.catalog.gpus[one.device.compute] for one in ideal.devices if one.device.compute]
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


def _by_jetpack(situation: Situation, best: Candidate | None) -> Iterator[Unlock]:
    """The JetPack from which a Jetson takes the wheels for servers."""
    tegra = situation.host.tegra
    chip = tegra_table().find_chip(tegra.chip) if tegra else None
    if tegra is None or chip is None or chip.unified_from is None or tegra.unified:
        return
    unified = describe_tegra(tegra.model, tegra.chip, chip.unified_from)
    ideal = best_candidate(replace(situation, host=replace_struct(situation.host, tegra=unified)))
    if ideal is not None and _better(situation, ideal, best):
        variant = ideal.variant
        text = (
            f"JetPack {unified.jetpack} (L4T R{unified.l4t}) or newer makes this a system that takes the wheels for "
            f"servers: PyTorch {variant.release.version} as {variant.short_name}, whose {ideal.coverage.through} code "
            f"then runs here."
        )
        yield Unlock(f"JetPack {unified.jetpack}", variant.unique_name, text)


def _by_python(situation: Situation, best: Candidate | None) -> Iterator[Unlock]:
    """The default Python, where the one asked for stands in the way."""
    free = replace(situation, request=replace(situation.request, python=None))
    python = free.request.wanted_python
    if situation.request.wanted_python == python or not free.releases:
        return
    ideal = best_candidate(free)
    if ideal is not None and _better(situation, ideal, best):
        text = f"Python {python} unlocks PyTorch {ideal.variant.release.version} ({ideal.variant.short_name})."
        yield Unlock(f"Python {python}", ideal.variant.unique_name, text)
