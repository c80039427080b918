"""Judges every variant of the matrix, with every build method, against a machine, and ranks those that run on it.

A variant is a candidate, or refused with a reason. The order of preference among candidates is `preference`: the
build method that costs least, for source and Nix a variant named for the GPU, the newest release, the instruction set
the workload prefers, native code before compatible before JIT-compiled, a variant named for the GPU (or whose wheel
contains what its name says), the default index's build, a driver that supports it fully, the newest CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from torchtailor.advise.host.model import GpuDevice, Host, Tegra
from torchtailor.advise.host.tegra import tegra_table
from torchtailor.advise.recommendation.drivers import DriverVerdict
from torchtailor.advise.recommendation.request import IsaRanking, Situation
from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Fit, GpuRules
from torchtailor.catalog.methods import Basis, Method
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.catalog.variants import MethodCoverage, Variant

_FITS = (Fit.NATIVE, Fit.COMPATIBLE, Fit.JIT, Fit.NONE)


class Refused(Enum):
    """Why a variant is no candidate."""

    CODE = "code"  # the GPU does not run its code
    CPU = "cpu"  # the CPU lacks what every official wheel of the release needs
    METHOD = "method"  # this method does not build it
    DRIVER = "driver"
    DROPPED = "dropped"  # the driver is too new for the GPU
    LIBC = "libc"
    SYSTEM = "system"  # every build here is for Linux
    TEGRA = "tegra"  # the wheels are built for servers


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """How one GPU runs a candidate."""

    device: GpuDevice
    fit: Fit
    driver: DriverVerdict
    code: CodeTarget  # what it runs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant, built with one method, that runs on all GPUs asked about."""

    variant: Variant
    method: Method
    coverage: MethodCoverage
    devices: tuple[DeviceFit, ...] = ()

    @property
    def fit(self) -> Fit:
        """The worst of its fits."""
        return max((device.fit for device in self.devices), key=_FITS.index, default=Fit.NATIVE)

    @property
    def exact(self) -> int:
        """For how many GPUs it is named."""
        capabilities = {gpu.capability for gpu in self.variant.gpus}
        return sum(device.device.compute in capabilities for device in self.devices)

    @property
    def driver(self) -> DriverVerdict | None:
        """The most limiting verdict on the driver."""
        order = list(DriverFit)
        return max(
            (device.driver for device in self.devices), key=lambda verdict: order.index(verdict.fit), default=None
        )

    @property
    def default_index(self) -> bool:
        """Whether the default index serves this build."""
        return self.variant.release.default_index.get(self.variant.arch) == self.variant.build.label


@dataclass(frozen=True, slots=True)
class Refusal:
    """A variant that does not run on the machine when built with this method, and why."""

    variant: Variant
    method: Method
    kind: Refused
    text: str
    driver: DriverVerdict | None = None


Judgement = Candidate | Refusal


def judge_all(situation: Situation, release: Release | None = None) -> Iterator[Judgement]:
    """Judge the variants for the CPU, of one release or of all: with GPUs to run on the GPU ones, else the CPU ones."""
    name = release.name if release else situation.request.release
    return _judge_each(situation, tuple(_variants(situation, name)), _methods(situation))


def _methods(situation: Situation) -> Sequence[Method]:
    wanted = situation.request.method
    return [situation.catalog.method(wanted)] if wanted else list(situation.catalog.methods.values())


def _variants(situation: Situation, release: str | None) -> Iterator[Variant]:
    python, arch, with_gpu = situation.request.wanted_python, situation.host.cpu.arch, bool(situation.devices)
    for variant in situation.matrix.variants(release, python):
        if (variant.gpu is not None) == with_gpu and variant.arch == arch:
            yield variant
    together = sorted({device.compute for device in situation.kinds if device.compute})
    if len(together) > 1:
        found = situation.matrix.variants(release, python)
        yield from (one for one in situation.matrix.for_all(found, together) if one.arch == arch)


def _judge_each(
    situation: Situation, variants: Sequence[Variant], methods: Sequence[Method], *, any_driver: bool = False
) -> Iterator[Judgement]:
    """Judge these variants with these methods.

    An instruction set that the CPU does not run rules out source and Nix builds. The official wheel takes its kernels
    at run time: where no variant of it is named for less, the one with the least demanding name stands for it. Code
    that the GPU does not run is refused once, whatever the instruction set. With `any_driver` the driver is assumed to
    be as new as needed.
    """
    nearest = _nearest_names(variants, situation.isas)
    for variant in variants:
        runs = situation.isas.runs(variant.isa)
        stands_for_wheel = nearest[_wheel_of(variant)] is variant
        if stands_for_wheel or (runs and _has_code(situation, variant)):
            for method in methods:
                if runs or method.basis is Basis.WHEEL:
                    yield judge(situation, variant, method, any_driver=any_driver)


def _wheel_of(variant: Variant) -> tuple[object, ...]:
    """What variants that are cut from one official wheel to one GPU share."""
    gpu = id(variant.gpu) if variant.gpu and not variant.also else variant.gpu_name
    return (variant.release.name, id(variant.build), gpu)


def _nearest_names(variants: Iterable[Variant], isas: IsaRanking) -> dict[tuple[object, ...], Variant]:
    """Of each official wheel and GPU, the variant whose instruction set is the CPU's best, or the nearest above it."""
    nearest: dict[tuple[object, ...], Variant] = {}
    for variant in variants:
        known = nearest.setdefault(_wheel_of(variant), variant)
        if isas.rank(variant.isa) < isas.rank(known.isa):
            nearest[_wheel_of(variant)] = variant
    return nearest


def judge(situation: Situation, variant: Variant, method: Method, *, any_driver: bool = False) -> Judgement:
    """One variant, built with one method."""
    if not situation.host.system.linux:
        text = f"Every variant is for Linux, and this machine runs {situation.host.system.os}."
        return Refusal(variant, method, Refused.SYSTEM, text)
    tegra = situation.host.tegra
    for device in situation.kinds:
        if device.integrated and method.basis is Basis.WHEEL and tegra is not None and not tegra.unified:
            return Refusal(variant, method, Refused.TEGRA, _why_no_server_wheels(tegra, variant.arch))
        if reason := _why_no_code(situation, device, variant):
            return Refusal(variant, method, Refused.CODE, reason)
    covered = situation.matrix.coverage(variant, method.name)
    if not covered.available:
        return Refusal(variant, method, Refused.METHOD, covered.text)
    if method.basis is Basis.WHEEL:
        if reason := _why_no_wheels(situation.host, variant.release):
            return Refusal(variant, method, Refused.LIBC, reason)
        if reason := _why_not_loaded(situation, variant):
            return Refusal(variant, method, Refused.CPU, reason)
    judged: dict[object, DeviceFit] = {}
    for device in situation.kinds:
        one = _judge_device(situation, device, variant, covered, any_driver=any_driver)
        if isinstance(one, Refusal):
            return one
        judged[device.compute, device.integrated] = one
    fits = (replace(judged[device.compute, device.integrated], device=device) for device in situation.devices)
    return Candidate(variant, method, covered, tuple(fits))


def _why_no_code(situation: Situation, device: GpuDevice, variant: Variant) -> str | None:
    """Why a GPU does not run what the variant's name promises.

    A wheel's sm89 variant may contain nothing but sm_86 code today; what counts for another GPU is the promise.
    """
    key = (id(device), id(variant.build), variant.gpu_name if variant.also else id(variant.gpu))
    known = situation.code_refusals
    if key not in known:
        assert device.compute is not None and variant.gpu is not None
        unified = _unifies(situation, device, variant.build)
        others = {gpu.capability for gpu in variant.also}
        promised = device.compute if device.compute in others else variant.gpu.capability
        known[key] = _why_not_run(situation.catalog.rules, device.compute, device.name, promised, unified)
    return known[key]


def _has_code(situation: Situation, variant: Variant) -> bool:
    return not any(_why_no_code(situation, device, variant) for device in situation.kinds)


def _has_driver(situation: Situation, build: Build) -> bool:
    return all(situation.driver(device, build).fit.runs for device in situation.kinds)


@lru_cache(maxsize=4096)  # a few dozen pairs, which all machines share
def _why_not_run(rules: GpuRules, compute: Capability, name: str, promised: Capability, unified: bool) -> str | None:
    code = CodeTarget(CodeKind.CUBIN, promised)
    if rules.fit(compute, code, unified_tegra=unified).runs:
        return None
    return f"{code} code does not run on compute capability {compute} ({name})."


def _why_no_wheels(host: Host, release: Release) -> str | None:
    system, needed = host.system, release.wheel_glibc(host.cpu.arch)
    if not system.lacks_glibc(needed):
        return None
    if system.libc == "musl":
        return "Official wheels are built for glibc, and this system has musl."
    return (
        f"Official wheels of {release.version} need glibc {needed} or newer; this system has {system.libc_version}. "
        "They run in a container with a newer one."
    )


def _why_not_loaded(situation: Situation, variant: Variant) -> str | None:
    """Why this CPU does not load the official wheel, as far as its baseline is known."""
    release, cpu = variant.release, situation.host.cpu
    missing = release.missing_for_wheel(variant.arch, cpu.flags)
    if missing is None:
        if situation.isas.runs(variant.isa):
            return None
        return (
            f"It is not known whether the official wheels of PyTorch {release.version} run below {variant.isa.label}."
        )
    if not missing:
        return None
    return (
        f"The official {variant.arch} wheels of PyTorch {release.version} need {release.baseline[variant.arch].label}: "
        f"this CPU lacks {', '.join(missing)}."
    )


def _judge_device(
    situation: Situation, device: GpuDevice, variant: Variant, covered: MethodCoverage, *, any_driver: bool
) -> DeviceFit | Refusal:
    assert device.compute is not None and covered.through is not None and variant.gpu is not None
    method = covered.method
    unified = _unifies(situation, device, variant.build)
    rules, through = situation.catalog.rules, covered.through
    if variant.also:
        codes = variant.build.wheel_codes(variant.arch)
        through = rules.best(device.compute, codes, unified_tegra=unified) or through
    fit = rules.fit(device.compute, through, unified_tegra=unified)
    if not fit.runs:
        text = f"{through} code does not run on compute capability {device.compute} ({device.name})."
        return Refusal(variant, method, Refused.CODE, text)
    verdict = situation.driver(device, variant.build)
    if any_driver and not (device.integrated and situation.host.tegra):
        return DeviceFit(device, fit, verdict, through)
    if not verdict.fit.runs:
        kind = Refused.DROPPED if verdict.fit is DriverFit.DROPPED_GPU else Refused.DRIVER
        return Refusal(variant, method, kind, verdict.text, verdict)
    if fit is Fit.JIT and verdict.fit is DriverFit.MINOR:
        text = (
            f"{through} must be JIT-compiled by the driver, which needs {verdict.full} or newer for CUDA "
            f"{variant.build.cuda}."
        )
        return Refusal(variant, method, Refused.DRIVER, text, verdict)
    return DeviceFit(device, fit, verdict, through)


def _unifies(situation: Situation, device: GpuDevice, build: Build) -> bool:
    """Whether this is a Tegra part of the unified stack, and code of this build new enough to be taken by it."""
    tegra = situation.host.tegra
    if not device.integrated or tegra is None or not tegra.unified:
        return False
    gpu = situation.catalog.gpus.get(device.compute) if device.compute else None
    if gpu is None or gpu.unified is None or build.cuda is None:
        return False
    return build.cuda >= gpu.unified.cuda


@lru_cache(maxsize=64)
def _why_no_server_wheels(tegra: Tegra, arch: str) -> str:
    chip = tegra_table().find_chip(tegra.chip)
    row = tegra_table().jetpack_of(chip.unified_from) if chip and chip.unified_from else None
    built = f"Official {arch} wheels are built for servers (SBSA)"
    if row is None:
        return f"{built}; this system does not support them."
    this = f"has JetPack {tegra.jetpack}" if tegra.jetpack else "has an unknown JetPack"
    return f"{built}, which needs JetPack {row.jetpack} or newer; this system {this}."


def preference(candidate: Candidate, isas: IsaRanking) -> tuple[object, ...]:
    """A key that is smallest for the best."""
    variant, driver = candidate.variant, candidate.driver
    return (
        candidate.method.minutes,
        -candidate.exact if candidate.method.basis is not Basis.WHEEL else 0,
        tuple(-part for part in variant.release.version.parts),
        bool(variant.also),
        isas.rank(variant.isa),
        _FITS.index(candidate.fit),
        -candidate.exact,
        _FITS.index(candidate.coverage.fit),
        -(variant.gpu.capability.number if variant.gpu else 0),
        not candidate.default_index,
        driver is not None and driver.fit is not DriverFit.FULL,
        tuple(-part for part in variant.build.cuda.parts) if variant.build.cuda else (),
    )


def ranked(judgements: Iterable[Judgement], isas: IsaRanking) -> tuple[Candidate, ...]:
    """The candidates among the judgements, best first."""
    candidates = (judgement for judgement in judgements if isinstance(judgement, Candidate))
    return tuple(sorted(candidates, key=lambda candidate: preference(candidate, isas)))


def best_candidate(situation: Situation, *, any_driver: bool = False) -> Candidate | None:
    """The best of all variants in a situation."""
    return _best_by(situation, _methods(situation), any_driver=any_driver)


def _best_by(situation: Situation, methods: Sequence[Method], *, any_driver: bool) -> Candidate | None:
    """The best of all variants with these methods.

    `preference` begins with the method's minutes, and for wheels goes on with the release: what comes later in this
    order is not judged once something runs.
    """
    promising = [
        variant
        for variant in _variants(situation, situation.request.release)
        if _has_code(situation, variant) and (any_driver or _has_driver(situation, variant.build))
    ]
    for minutes in sorted({method.minutes for method in methods}):
        alike = [method for method in methods if method.minutes == minutes]
        groups = [promising]
        if all(method.basis is Basis.WHEEL for method in alike):
            groups = [[one for one in promising if one.release is release] for release in situation.releases]
        for variants in groups:
            order = ranked(_judge_each(situation, variants, alike, any_driver=any_driver), situation.isas)
            if order:
                return order[0]
    return None


def best_of_other_pythons(situation: Situation, *, any_driver: bool = False) -> Candidate | None:
    """The wheel of the newest release that runs, for another Python than the default, where that has nothing.

    Old GPUs have old releases, which are not available for the default Python. None where a Python was asked for.
    """
    methods = [method for method in _methods(situation) if method.basis is Basis.WHEEL]
    if (
        situation.request.python is not None
        or not situation.devices
        or not methods
        or best_candidate(situation, any_driver=any_driver)
    ):
        return None
    releases = situation.catalog.releases.values()
    pythons = {python for release in releases for python in release.pythons if not python.endswith("t")}
    bests = (_best_by(situation.for_python(python), methods, any_driver=any_driver) for python in pythons)
    wheels = [best for best in bests if best is not None]
    return max(wheels, key=lambda best: (best.variant.release.version, python_key(best.variant.python)), default=None)
