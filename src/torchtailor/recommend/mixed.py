"""Machines with GPUs of different kinds: the best for each kind, and what serves all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torchtailor.catalog.gpus import CodeKind
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.host.model import GpuDevice
from torchtailor.recommend.candidates import Candidate
from torchtailor.recommend.explain import pick, short_label
from torchtailor.recommend.ranking import best_candidate
from torchtailor.recommend.result import Pick
from torchtailor.recommend.situation import Situation


def best_per_kind(situation: Situation) -> tuple[Candidate, ...]:
    """The best for each kind of GPU, the strongest kind first; none where there is but one kind."""
    kinds: dict[object, list[GpuDevice]] = {}
    for device in situation.devices:
        kinds.setdefault(device.compute, []).append(device)
    if len(kinds) < 2:
        return ()
    groups = sorted(kinds.values(), key=_strength, reverse=True)
    bests = (best_candidate(situation.on(group)) for group in groups)
    return tuple(best for best in bests if best is not None)


def _strength(group: Sequence[GpuDevice]) -> tuple[object, ...]:
    """By memory where it is known, then capability: an A100 comes before an RTX 3090."""
    return (max(device.memory or 0 for device in group), group[0].compute, len(group))


def picks_per_kind(bests: Sequence[Candidate]) -> tuple[Pick, ...]:
    """The same, with how to run each."""
    picks = []
    for candidate in bests:
        labels = ", ".join(short_label(one.device) for one in candidate.devices)
        chosen = ",".join(one.device.uuid or str(one.device.index) for one in candidate.devices)
        reason = f"For {labels} alone: run with CUDA_VISIBLE_DEVICES={chosen}."
        picks.append(pick(candidate, reason, candidate.coverage.text))
    return tuple(picks)


def choice_notes(situation: Situation, chosen: Candidate) -> list[str]:
    """What to know where no variant covers all GPUs and one kind was chosen."""
    names = ", ".join(short_label(one.device) for one in chosen.devices)
    text = (
        f"No single variant runs on all GPUs of this machine. The one recommended is for {names}; give the others an "
        "environment of their own, and set CUDA_VISIBLE_DEVICES in each."
    )
    notes = [text]
    if uncut := _uncut_for_all(situation):
        release, build = uncut
        targets = ",".join(
            str(compute) for compute in sorted({one.compute for one in situation.devices if one.compute})
        )
        notes.append(
            f"The official {build.label} wheel of PyTorch {release.version}, uncut, holds code for all of them: one "
            f"environment for all. `torchtailor tailor --gpu {targets}` cuts it to these alone."
        )
    return notes


def _uncut_for_all(situation: Situation) -> tuple[Release, Build] | None:
    """The newest official wheel that runs, as it is, on every GPU."""
    for release in situation.releases:
        default = release.default_index.get(situation.host.cpu.arch)
        for build in sorted(release.cuda_builds, key=lambda item: item.label != default):
            if all(_runs_uncut(situation, device, build) for device in situation.devices):
                return release, build
    return None


def _runs_uncut(situation: Situation, device: GpuDevice, build: Build) -> bool:
    assert device.compute is not None
    code = situation.catalog.rules.best(device.compute, build.wheel_codes(situation.host.cpu.arch))
    driver = situation.driver(device, build).fit
    if code is None or not driver.runs:
        return False
    return code.kind is not CodeKind.PTX or driver is DriverFit.FULL
