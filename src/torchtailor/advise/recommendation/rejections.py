"""What was not chosen and why, grouped so that each reason is given once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchtailor.advise.host.model import Cpu, GpuDevice
from torchtailor.advise.recommendation.candidates import Candidate, Judgement, Refusal, Refused, judge_all
from torchtailor.advise.recommendation.request import IsaRanking, Situation
from torchtailor.advise.recommendation.result import Rejection
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import WHEEL, Basis
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.variants.rules import unless

NO_WHEEL_OF_IT = "There is no official wheel of it: build it from source."


def rejected(situation: Situation, judgements: Sequence[Judgement], best: Candidate | None) -> tuple[Rejection, ...]:
    """Everything that was not chosen: instruction sets, wheels, builds, code for other GPUs, releases."""
    if not situation.host.system.linux:
        return tuple(_wheels(judgements))
    found = [*_isas(situation.isas, situation.host.cpu), *_wheels(judgements)]
    if situation.devices:
        found += _builds(situation, judgements, best)
    if best is not None and best.devices:
        found += _gpus(best, judgements)
    return (*found, *_pythons(situation, best))


def _isas(isas: IsaRanking, cpu: Cpu) -> Iterator[Rejection]:
    """The instruction sets that the CPU lacks something for, or may lack."""
    for isa, missing in isas.lacking:
        text = f"This CPU does not support {isa.label}: it lacks {', '.join(missing)}."
        if cpu.at_least:
            text = f"Its name does not tell whether this CPU supports {isa.label}."
        yield Rejection(isa.name, text)


def _wheels(judgements: Sequence[Judgement]) -> Iterator[Rejection]:
    """All wheels, where the system's C library is not the one they are built for; all builds where it is no Linux."""
    for kind, what in ((Refused.SYSTEM, "all variants"), (Refused.LIBC, "wheels")):
        refusals = [judgement for judgement in judgements if isinstance(judgement, Refusal) and judgement.kind is kind]
        if refusals and not any(
            isinstance(judgement, Candidate) and judgement.method.basis is Basis.WHEEL for judgement in judgements
        ):
            yield Rejection(what, refusals[0].text)


def _pythons(situation: Situation, best: Candidate | None) -> Iterator[Rejection]:
    """The releases, newer than the best, that are not available for the Python asked for."""
    python = situation.request.wanted_python
    if situation.request.release is not None:
        return
    groups: dict[str, list[str]] = {}
    for release in sorted(situation.catalog.releases.values(), key=lambda one: one.version, reverse=True):
        if python in release.pythons or (best is not None and release.version < best.variant.release.version):
            continue
        for name, reason in _despite_python(situation, release):
            groups.setdefault(reason or f"Not available for Python {python}.", []).append(name)
    for reason, names in groups.items():
        yield Rejection(f"PyTorch {', '.join(dict.fromkeys(names))}", reason)


def _despite_python(situation: Situation, release: Release) -> Iterator[tuple[str, str | None]]:
    """A release's builds, each with the reason against it that its own Python would not remove, if there is one."""
    there = situation.for_python(release.default_python)
    here = list(judge_all(there, release))
    reasons = {build.label: _why_not(there, here, build) for build in release.cuda_builds} if there.devices else {}
    if reasons and all(reasons.values()):
        yield from ((f"{release.version} {label}", reason) for label, reason in reasons.items())
    else:
        yield str(release.version), None


def _builds(situation: Situation, judgements: Sequence[Judgement], best: Candidate | None) -> Iterator[Rejection]:
    """The builds at least as new as the best one that do not run on these GPUs, by the reason against them."""
    groups: dict[str, list[str]] = {}
    for release in situation.releases:
        if best is not None and release.version < best.variant.release.version:
            continue
        for build in release.cuda_builds:
            here = [
                judgement
                for judgement in judgements
                if judgement.variant.release is release and judgement.variant.build is build
            ]
            if reason := _why_not(situation, here, build):
                groups.setdefault(reason, []).append(f"{release.version} {build.label}")
    for reason, names in groups.items():
        yield Rejection(f"PyTorch {', '.join(names)}", reason)


def _why_not(situation: Situation, judgements: Sequence[Judgement], build: Build) -> str | None:
    """The reason against a build; None where something of it runs, or nobody would expect it to."""
    method, devices = situation.catalog.method(situation.request.method or WHEEL), situation.devices
    if any(isinstance(judgement, Candidate) and judgement.method.name == method.name for judgement in judgements):
        return None
    for device in devices:
        gpu = situation.catalog.gpus.get(device.compute) if device.compute else None
        if gpu is not None and (reason := _why_not_gpu(situation.catalog, gpu, build)):
            return reason
        if not (verdict := situation.driver(device, build)).fit.runs:
            return verdict.text
    refusals = [
        judgement for judgement in judgements if isinstance(judgement, Refusal) and judgement.method.name == method.name
    ]
    capabilities = {device.compute for device in devices}
    named = [one for one in refusals if one.variant.gpu and one.variant.gpu.capability in capabilities]
    if method.basis is Basis.WHEEL and not build.wheels:
        return NO_WHEEL_OF_IT if named else None
    for kind in (Refused.DRIVER, Refused.TEGRA, Refused.LIBC, Refused.CPU):
        if found := [one for one in (*named, *refusals) if one.kind is kind]:
            return found[0].text
    if method.basis is Basis.WHEEL and (named or not _any_runs(situation, build)):
        return _no_code(situation.catalog, build, situation.host.cpu.arch, devices)
    if named and len(capabilities) == 1:
        return named[0].text
    if len(capabilities) > 1:
        return "No variant of it has code that runs on all of these GPUs."
    return f"The matrix has no variant of it for {_names(devices)} and this CPU."


def _any_runs(situation: Situation, build: Build) -> bool:
    """Whether some GPU runs some of the code in the official wheel."""
    codes = build.wheel_codes(situation.host.cpu.arch)
    return any(situation.catalog.rules.best(device.compute, codes) for device in situation.devices if device.compute)


def _why_not_gpu(catalog: Catalog, gpu: Gpu, build: Build) -> str | None:
    assert build.cuda is not None
    code = CodeTarget(CodeKind.CUBIN, gpu.capability)
    if catalog.toolkit(build.cuda).compiles(code):
        return None
    if build.cuda < gpu.first_cuda:
        return f"CUDA {build.cuda} does not support {gpu.sm.upper()} ({gpu.family}) yet: {gpu.first_cuda} is the first."
    if gpu.last_cuda is None:
        return None
    return f"CUDA {build.cuda.major} no longer supports {gpu.sm.upper()} ({gpu.family}): {gpu.last_cuda} was the last."


def _no_code(catalog: Catalog, build: Build, arch: str, devices: Sequence[GpuDevice]) -> str:
    codes = build.wheel_codes(arch)
    if not codes:
        return f"There is no official wheel with CUDA for {arch}, or its contents are unknown."
    known = (catalog.gpus.get(device.compute) for device in devices if device.compute)
    more = "".join(dict.fromkeys(unless(gpu, codes) for gpu in known if gpu))
    listed = ", ".join(map(str, codes))
    return f"The official {arch} wheels contain {listed}, none of which runs on {_names(devices)}{more}."


def _names(devices: Sequence[GpuDevice]) -> str:
    return " and ".join(dict.fromkeys(device.compute.sm.upper() for device in devices if device.compute))


def _gpus(best: Candidate, judgements: Iterable[Judgement]) -> Iterator[Rejection]:
    """The variants of the chosen build whose code is for other GPUs."""
    if best.variant.also:
        return
    devices = " and ".join(dict.fromkeys(str(device.device.compute) for device in best.devices))
    chosen = (best.variant.release, best.variant.build, best.method.name)
    others = {
        judgement.variant.gpu.capability: judgement.variant.gpu.sm
        for judgement in judgements
        if isinstance(judgement, Refusal)
        and judgement.kind is Refused.CODE
        and judgement.variant.gpu is not None
        and (judgement.variant.release, judgement.variant.build, judgement.method.name) == chosen
    }
    if others:
        names = ", ".join(name for _, name in sorted(others.items()))
        yield Rejection(
            names,
            f"Code for these does not run on {devices}: the major number must be the same, and the minor not higher.",
        )
