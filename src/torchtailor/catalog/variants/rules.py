"""Why a combination is not possible, and with which methods a possible one can be built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Fit, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import Basis, Method
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.variants.variant import Variant

_ONE_GPU = "It is built for one GPU; only official wheels are cut for several."
_RECIPE_PYTHONS = ("3.11", "3.12", "3.13", "3.14")


class MatrixRule(Enum):
    """The rules against impossible combinations."""

    HOST = "host"
    TOOLKIT = "toolkit"
    PYTHON = "python"
    NOT_OFFERED = "not-offered"


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule that a combination breaks, in a sentence."""

    rule: MatrixRule
    text: str


def why_impossible(
    catalog: Catalog, release: Release, build: Build, gpu: Gpu | None, isa: Isa, python: str
) -> tuple[Reason, ...]:
    """All rules that forbid this combination; empty when it is possible."""
    reasons = []
    if python not in release.pythons:
        offered = ", ".join(release.pythons)
        text = f"PyTorch {release.version} is not available for Python {python}, only for {offered}."
        reasons.append(Reason(MatrixRule.PYTHON, text))
    if gpu is not None:
        reasons += _why_impossible_gpu(catalog, build, gpu, isa)
    return tuple(reasons)


def _why_impossible_gpu(catalog: Catalog, build: Build, gpu: Gpu, isa: Isa) -> list[Reason]:
    reasons = []
    name = gpu.sm.upper()
    if not gpu.offered:
        reasons.append(Reason(MatrixRule.NOT_OFFERED, f"{name} ({gpu.family}) is in no public product with CUDA."))
    if isa.arch not in gpu.hosts:
        hosts = " and ".join(sorted(gpu.hosts))
        text = f"{name} ({gpu.describe(2)}) exists only with {hosts} hosts, and {isa.label} is {isa.arch}."
        reasons.append(Reason(MatrixRule.HOST, text))
    if build.cuda is not None and not catalog.toolkit(build.cuda).compiles(CodeTarget(CodeKind.CUBIN, gpu.capability)):
        limits = f"from CUDA {gpu.first_cuda}" + (f" to {gpu.last_cuda}" if gpu.last_cuda else " on")
        text = f"CUDA {build.cuda} does not compile for {name}: that needs a toolkit {limits}."
        reasons.append(Reason(MatrixRule.TOOLKIT, text))
    return reasons


@dataclass(frozen=True, slots=True)
class MethodCoverage:
    """Whether and how one method builds a variant."""

    method: Method
    available: bool
    fit: Fit
    through: CodeTarget | None
    text: str


def coverage(catalog: Catalog, variant: Variant, method: str) -> MethodCoverage:
    """Whether and how a method builds a variant, in one sentence."""
    known = catalog.method(method)
    rule = {Basis.WHEEL: _by_wheel, Basis.SOURCE: _by_source, Basis.RECIPE: _by_recipe}[known.basis]
    return rule(catalog, variant, known)


def available_methods(catalog: Catalog, variant: Variant) -> tuple[str, ...]:
    """The names of the methods that build a variant."""
    return tuple(name for name in catalog.methods if coverage(catalog, variant, name).available)


def _unavailable(method: Method, text: str) -> MethodCoverage:
    return MethodCoverage(method, False, Fit.NONE, None, text)


def _by_wheel(catalog: Catalog, variant: Variant, method: Method) -> MethodCoverage:
    release, build, gpu = variant.release, variant.build, variant.gpu
    official = f"The official {build.label} wheel of PyTorch {release.version} for {variant.arch}"
    if gpu is None:
        text = f"{official} selects its CPU kernels at run time."
        return MethodCoverage(method, True, Fit.NATIVE, None, text)
    if variant.also:
        return _by_wheel_for_all(catalog, variant, method, official)
    codes = build.wheel_codes(variant.arch)
    if not codes:
        return _unavailable(method, f"{official} does not exist or its contents are unknown.")
    unified = bool(gpu.unified and build.cuda and build.cuda >= gpu.unified.cuda)
    best = catalog.rules.best(gpu.capability, codes, unified_tegra=unified)
    if best is None:
        listed = ", ".join(str(code) for code in codes)
        text = f"{official} contains {listed}, none of which runs on {gpu.sm.upper()}{unless(gpu, codes)}."
        return _unavailable(method, text)
    fit = catalog.rules.fit(gpu.capability, best, unified_tegra=unified)
    text = {
        Fit.NATIVE: f"{official} contains {best}.",
        Fit.COMPATIBLE: f"{official} contains {best}, which runs on {gpu.sm.upper()}.",
        Fit.JIT: f"{official} contains {best}, which the driver compiles for {gpu.sm.upper()} at first use.",
        Fit.NONE: "",
    }[fit]
    if fit is Fit.COMPATIBLE and unified and gpu.unified:
        text += f" This needs {gpu.unified.condition}."
    return MethodCoverage(method, True, fit, best, text)


def _by_wheel_for_all(catalog: Catalog, variant: Variant, method: Method, official: str) -> MethodCoverage:
    """One wheel with code for each of several GPUs."""
    each = [_by_wheel(catalog, replace(variant, gpu=gpu, also=()), method) for gpu in variant.gpus]
    if lacking := next((one for one in each if not one.available), None):
        return lacking
    codes = " and ".join(
        f"{one.through} for {gpu.sm.upper()}" for gpu, one in zip(variant.gpus, each, strict=True) if one.through
    )
    worst = max((one.fit for one in each), key=list(Fit).index)
    return MethodCoverage(method, True, worst, each[0].through, f"{official} contains {codes}.")


def unless(gpu: Gpu, codes: Sequence[CodeTarget]) -> str:
    """From which CUDA on a Tegra part runs some of the code that it does not run when an older one made it."""
    taken = [code for code in codes if gpu.unified and code.capability in gpu.unified.capabilities]
    if not taken or gpu.unified is None:
        return ""
    return f" ({' and '.join(map(str, taken))} code does from CUDA {gpu.unified.cuda} on)"


def _by_source(catalog: Catalog, variant: Variant, method: Method) -> MethodCoverage:
    gpu, build = variant.gpu, variant.build
    if variant.also:
        return _unavailable(method, _ONE_GPU)
    if gpu is None:
        text = f"Compiled with {' '.join(variant.isa.compile_flags)}."
        return MethodCoverage(method, True, Fit.NATIVE, None, text)
    assert build.cuda is not None
    code = CodeTarget(CodeKind.CUBIN, gpu.capability)
    if not catalog.toolkit(build.cuda).compiles(code):
        return _unavailable(method, f"CUDA {build.cuda} does not compile for {code}.")
    return MethodCoverage(method, True, Fit.NATIVE, code, f"Compiled for {code} and {variant.isa.label} alone.")


def _by_recipe(catalog: Catalog, variant: Variant, method: Method) -> MethodCoverage:
    release, gpu = variant.release, variant.gpu
    if variant.also:
        return _unavailable(method, _ONE_GPU)
    if release.nixpkgs is None:
        return _unavailable(method, f"There is no Nix recipe for release {release.name}.")
    if not variant.build.recipes:
        return _unavailable(method, f"The recipes of release {release.name} do not include {variant.build.label}.")
    if variant.python not in _RECIPE_PYTHONS:
        return _unavailable(method, "Nix recipes exist for Python 3.11 to 3.14.")
    code = CodeTarget(CodeKind.CUBIN, gpu.capability) if gpu else None
    if code and variant.build.cuda and not catalog.toolkit(variant.build.cuda).compiles(code):
        return _unavailable(method, f"CUDA {variant.build.cuda} does not compile for {code}.")
    return MethodCoverage(method, True, Fit.NATIVE, code, f"Recipe {variant.name}.nix.")
