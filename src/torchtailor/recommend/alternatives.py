"""Other variants that run too. Each differs from the best in one thing: CUDA build, instruction set, release, way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtailor.catalog.releases import Method
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.recommend.candidates import Candidate
from torchtailor.recommend.explain import pick
from torchtailor.recommend.request import Workload
from torchtailor.recommend.result import Pick

_OLDER_RELEASES = 2


def alternatives(best: Candidate, candidates: Sequence[Candidate], cpu: Candidate | None) -> tuple[Pick, ...]:
    """The alternatives, nearest first; candidates come best first, `cpu` is the best one without a GPU."""
    others = [candidate for candidate in candidates if candidate is not best]
    found = [
        *_other_builds(best, others),
        *_other_isas(best, others),
        *_older_releases(best, others),
        *_other_ways(best, others),
    ]
    if cpu is not None and best.variant.gpu is not None:
        found.append(pick(cpu, "It runs without a GPU: for development and tests."))
    return tuple(found)


def _other_builds(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The same variant with another CUDA."""
    seen = {best.variant.build.label}
    for other in others:
        same = (other.way, other.variant.release, other.variant.isa, other.variant.gpu) == (
            best.way,
            best.variant.release,
            best.variant.isa,
            best.variant.gpu,
        )
        if same and other.variant.build.label not in seen:
            seen.add(other.variant.build.label)
            full = other.driver is not None and other.driver.told and other.driver.fit is DriverFit.FULL
            limited = best.driver is not None and best.driver.fit is DriverFit.MINOR
            gain = "your driver runs it in full" if full and limited else "for libraries that are made for it"
            yield pick(other, f"The same with CUDA {other.variant.build.cuda}: {gain}.")


def _other_isas(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The same build with another instruction set."""
    seen = {best.variant.isa.name}
    for other in others:
        same = (other.way, other.variant.release, other.variant.build, other.variant.gpu) == (
            best.way,
            best.variant.release,
            best.variant.build,
            best.variant.gpu,
        )
        if same and other.variant.isa.name not in seen:
            seen.add(other.variant.isa.name)
            isa = other.variant.isa
            uses = [name for name in isa.workloads if name != Workload.GENERAL.value]
            gain = f"for {' and '.join(uses)} on the CPU" if uses else "runs on more CPUs than this one"
            yield pick(other, f"With {isa.label}: {gain}.")


def _older_releases(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The best of the releases before."""
    seen = {best.variant.release.name}
    for other in others:
        release = other.variant.release
        older = release.version < best.variant.release.version
        if older and other.way is best.way and release.name not in seen and len(seen) <= _OLDER_RELEASES:
            seen.add(release.name)
            yield pick(other, f"PyTorch {release.version}: for code that needs the older release.")


def _other_ways(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The best by another way."""
    seen = {best.way}
    for other in others:
        if other.way not in seen:
            seen.add(other.way)
            alone = "this hardware" if other.exact == len(other.devices) else other.variant.short_name
            gains = {
                Method.WHEEL: "made of the official wheel in minutes",
                Method.SOURCE: f"compiled for {alone} alone, in hours",
                Method.NIX: "a reproducible recipe, compiled in hours",
            }
            newer = other.variant.release.version > best.variant.release.version
            more = f", and PyTorch {other.variant.release.version} is newer" if newer else ""
            yield pick(other, f"By way of {other.way.value}: {gains[other.way]}{more}.")
