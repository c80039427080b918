"""What one change makes possible: another driver, JetPack or Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from torchtailor.advise.host.tegra import describe_tegra, tegra_table
from torchtailor.advise.recommendation.candidates import Candidate, best_candidate, best_of_other_pythons, preference
from torchtailor.advise.recommendation.drivers import last_branch
from torchtailor.advise.recommendation.request import Situation
from torchtailor.advise.recommendation.result import Upgrade
from torchtailor.catalog.methods import Basis
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.catalog.toolkits import DriverFit


def upgrades_of(situation: Situation, best: Candidate | None, every: Situation) -> tuple[Upgrade, ...]:
    """What leads to one environment for all GPUs, where `best` is for some of them; else what is better for these."""
    mixed = every is not situation and last_branch(every.catalog, every.host) is None
    return (tuple(upgrades(every, None)) if mixed else ()) or tuple(upgrades(situation, best))


def upgrades(situation: Situation, best: Candidate | None) -> Iterator[Upgrade]:
    """The changes that would lead to something better than `best`, or to anything at all."""
    newest = max(release.version for release in situation.catalog.releases.values())
    if best is not None and best.method.basis is Basis.WHEEL and best.variant.release.version == newest:
        return
    if situation.devices and situation.host.system.linux:
        by_driver = tuple(_by_driver(situation, best))
        if best is None or best.variant.gpu is None:
            yield from _by_least_driver(situation, by_driver)
        yield from by_driver
        yield from _by_jetpack(situation, best)
        by_python = tuple(_by_python(situation, best))
        yield from by_python
        if not by_driver and not by_python:
            yield from _by_both(situation, best)


def _better(situation: Situation, candidate: Candidate, best: Candidate | None) -> bool:
    if best is None:
        return True
    newer = candidate.variant.release.version > best.variant.release.version
    cheaper = candidate.method.minutes < best.method.minutes  # a wheel instead of hours of compiling
    return (newer or cheaper) and preference(candidate, situation.isas) < preference(best, situation.isas)


def _by_both(situation: Situation, best: Candidate | None) -> Iterator[Upgrade]:
    """A newer driver with the default Python, where neither alone leads to anything better."""
    python = DEFAULT_PYTHON
    if situation.request.wanted_python == python:
        return
    for upgrade in _by_driver(situation.for_python(python), best):
        name = upgrade.variant
        yield Upgrade(f"{upgrade.needs} and Python {python}", name, f"Together with Python {python}: {upgrade.text}")


def _by_driver(situation: Situation, best: Candidate | None) -> Iterator[Upgrade]:
    ideal = best_candidate(situation, any_driver=True) or best_of_other_pythons(situation, any_driver=True)
    if ideal is None or ideal.driver is None or not _better(situation, ideal, best):
        return
    variant, verdict = ideal.variant, ideal.driver
    gain = f"PyTorch {variant.release.version} with CUDA {variant.build.cuda} ({variant.short_name})"
    if ideal.method.basis is not Basis.WHEEL:
        gain += f" {ideal.method.phrase}"
    if variant.python != situation.request.wanted_python:
        gain += f" for Python {variant.python}"
    if verdict.fit is DriverFit.DROPPED_GPU:
        known = [situation.catalog.gpus[device.device.compute] for device in ideal.devices if device.device.compute]
        branch = min(gpu.last_driver_branch for gpu in known if gpu.last_driver_branch is not None)
        text = f"{verdict.text} With a driver of branch R{branch}, {gain} runs."
        yield Upgrade(f"driver R{branch}", variant.unique_name, text)
    elif verdict.needs is not None:
        more = f" ({verdict.full} for full support)" if verdict.full and verdict.full > verdict.needs else ""
        last = last_branch(situation.catalog, situation.host)
        if last is None:
            text = f"Driver {verdict.needs} or newer{more} enables {gain}."
        elif verdict.needs.major <= last.branch:
            text = f"Driver {verdict.needs} or newer{more}, up to branch R{last.branch}, enables {gain}."
        else:
            text = (
                f"Driver {verdict.needs} or newer{more} enables {gain}, but {last.gpu} would be lost: "
                f"R{last.branch} is the last branch that supports it."
            )
        yield Upgrade(f"driver {verdict.needs}", variant.unique_name, text)
    else:
        text = f"A newer driver, one for CUDA {variant.build.cuda}, enables {gain}."
        yield Upgrade(f"CUDA {variant.build.cuda}", variant.unique_name, text)


def _by_least_driver(situation: Situation, by_driver: tuple[Upgrade, ...]) -> Iterator[Upgrade]:
    """The first driver that knows the GPUs, where an older release already runs on it."""
    driver, known = situation.host.driver, situation.catalog.gpus
    there = ((known.get(device.compute), device.name) for device in situation.devices if device.compute)
    firsts = [gpu.first_driver_of(name) for gpu, name in there if gpu is not None]
    first = max((one for one in firsts if one is not None), default=None)
    if driver is None or first is None or driver.windows or driver.number >= first:
        return
    updated = replace_struct(situation.host, driver=replace_struct(driver, version=str(first), cuda=None))
    least = best_candidate(replace(situation, host=updated))
    if least is not None and least.variant.unique_name not in {one.variant for one in by_driver}:
        text = f"Driver {first} or newer enables PyTorch {least.variant.release.version} with CUDA "
        text += f"{least.variant.build.cuda} ({least.variant.short_name})."
        yield Upgrade(f"driver {first}", least.variant.unique_name, text)


def _by_jetpack(situation: Situation, best: Candidate | None) -> Iterator[Upgrade]:
    """The JetPack from which a Jetson supports the wheels for servers."""
    tegra = situation.host.tegra
    chip = tegra_table().find_chip(tegra.chip) if tegra else None
    if tegra is None or chip is None or chip.unified_from is None or tegra.unified or tegra.jetpack is None:
        return
    unified = describe_tegra(tegra.model, tegra.chip, chip.unified_from)
    ideal = best_candidate(replace(situation, host=replace_struct(situation.host, tegra=unified)))
    if ideal is not None and _better(situation, ideal, best):
        variant = ideal.variant
        text = (
            f"JetPack {unified.jetpack} (L4T R{unified.l4t}) or newer supports the wheels for servers (SBSA): PyTorch "
            f"{variant.release.version} as {variant.short_name}, whose {ideal.coverage.through} code then runs on it."
        )
        yield Upgrade(f"JetPack {unified.jetpack}", variant.unique_name, text)


def _by_python(situation: Situation, best: Candidate | None) -> Iterator[Upgrade]:
    """The default Python, where the one asked for rules out newer releases."""
    free = replace(situation, request=replace(situation.request, python=None))
    python = free.request.wanted_python
    if situation.request.wanted_python == python or not free.releases:
        return
    ideal = best_candidate(free)
    if ideal is not None and _better(situation, ideal, best):
        text = f"Python {python} enables PyTorch {ideal.variant.release.version} ({ideal.variant.short_name})"
        text += "." if best is None or best.method is ideal.method else f" {ideal.method.phrase}."
        yield Upgrade(f"Python {python}", ideal.variant.unique_name, text)
