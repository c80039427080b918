"""Why a combination cannot exist, and by which ways one that can exist can be made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Fit, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Build, Method, Release
from torchtailor.variants.variant import Variant


class Rule(Enum):
    """The rules against impossible combinations."""

    HOST = "host"
    TOOLKIT = "toolkit"
    PYTHON = "python"
    NOT_OFFERED = "not-offered"


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule that a combination breaks, in a sentence."""

    rule: Rule
    text: str


def why_impossible(
    catalog: Catalog, release: Release, build: Build, gpu: Gpu | None, isa: Isa, python: str
) -> tuple[Reason, ...]:
    """All rules that forbid this combination; empty when it can exist."""
    reasons = []
    if python not in release.pythons:
        reasons.append(
            Reason(
                Rule.PYTHON,
                f"PyTorch {release.version} is not offered for Python {python}, only for {', '.join(release.pythons)}.",
            )
        )
    if gpu is not None:
        reasons += _why_impossible_gpu(catalog, build, gpu, isa)
    return tuple(reasons)


def _why_impossible_gpu(catalog: Catalog, build: Build, gpu: Gpu, isa: Isa) -> list[Reason]:
    reasons = []
    if not gpu.offered:
        reasons.append(Reason(Rule.NOT_OFFERED, f"{gpu.sm.upper()} ({gpu.family}) is in no product that runs CUDA."))
    if isa.arch not in gpu.hosts:
        hosts = " and ".join(sorted(gpu.hosts))
        reasons.append(
            Reason(
                Rule.HOST,
                f"{gpu.sm.upper()} ({gpu.describe(2)}) exists only with {hosts} hosts, and {isa.label} is {isa.arch}.",
            )
        )
    if build.cuda is not None:
        toolkit = catalog.toolkit(build.cuda)
        if not toolkit.compiles(CodeTarget(CodeKind.CUBIN, gpu.capability)):
            limits = f"from CUDA {gpu.first_cuda}" + (f" to {gpu.last_cuda}" if gpu.last_cuda else " on")
            reasons.append(
                Reason(
                    Rule.TOOLKIT,
                    f"CUDA {build.cuda} does not compile for {gpu.sm.upper()}: that needs a toolkit {limits}.",
                )
            )
    return reasons


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one way gives for a variant."""

    way: Method
    available: bool
    fit: Fit
    through: CodeTarget | None
    text: str


def coverage(catalog: Catalog, variant: Variant, way: Method) -> Coverage:
    """Whether and how a way can make a variant, in one sentence."""
    return {Method.WHEEL: _by_wheel, Method.SOURCE: _by_source, Method.NIX: _by_nix}[way](catalog, variant)


def covering_ways(catalog: Catalog, variant: Variant) -> tuple[Method, ...]:
    return tuple(way for way in Method if coverage(catalog, variant, way).available)


def _by_wheel(catalog: Catalog, variant: Variant) -> Coverage:
    release, build, gpu = variant.release, variant.build, variant.gpu
    official = f"the official {build.label} wheel of PyTorch {release.version} for {variant.arch}"
    if gpu is None:
        text = f"{official} runs on {variant.isa.label}: it picks the best of its CPU kernels at run time."
        return Coverage(Method.WHEEL, True, Fit.NATIVE, None, _sentence(text))
    codes = build.wheel_codes(variant.arch)
    if not codes:
        return Coverage(Method.WHEEL, False, Fit.NONE, None, _sentence(f"{official} does not exist or is not known."))
    unified = bool(gpu.unified and build.cuda and build.cuda >= gpu.unified.cuda)
    best = catalog.rules.best(gpu.capability, codes, unified_tegra=unified)
    if best is None:
        held = ", ".join(str(code) for code in codes)
        text = f"{official} holds {held}: nothing that {gpu.sm.upper()} runs."
        return Coverage(Method.WHEEL, False, Fit.NONE, None, _sentence(text))
    fit = catalog.rules.fit(gpu.capability, best, unified_tegra=unified)
    text = {
        Fit.NATIVE: f"{official} holds {best}.",
        Fit.COMPATIBLE: f"{official} holds {best}, which runs on {gpu.sm.upper()}.",
        Fit.JIT: f"{official} holds {best}, which the driver compiles for {gpu.sm.upper()} at first use.",
        Fit.NONE: "",
    }[fit]
    if fit is Fit.COMPATIBLE and unified and gpu.unified:
        text += f" This needs {gpu.unified.condition}."
    return Coverage(Method.WHEEL, True, fit, best, _sentence(text))


def _by_source(catalog: Catalog, variant: Variant) -> Coverage:
    gpu, build = variant.gpu, variant.build
    if gpu is None:
        text = f"compiled with {' '.join(variant.isa.compile_flags)}."
        return Coverage(Method.SOURCE, True, Fit.NATIVE, None, _sentence(text))
    assert build.cuda is not None
    code = CodeTarget(CodeKind.CUBIN, gpu.capability)
    if not catalog.toolkit(build.cuda).compiles(code):
        return Coverage(Method.SOURCE, False, Fit.NONE, None, f"CUDA {build.cuda} does not compile for {code}.")
    return Coverage(Method.SOURCE, True, Fit.NATIVE, code, f"Compiled for {code} and {variant.isa.label} alone.")


def _by_nix(catalog: Catalog, variant: Variant) -> Coverage:
    release, gpu = variant.release, variant.gpu
    if release.nixpkgs is None:
        return Coverage(Method.NIX, False, Fit.NONE, None, f"There is no recipe for release {release.name}.")
    if variant.python.endswith("t") or variant.python > "3.13":
        return Coverage(Method.NIX, False, Fit.NONE, None, "Recipes are written for Python 3.11, 3.12 and 3.13.")
    code = CodeTarget(CodeKind.CUBIN, gpu.capability) if gpu else None
    if code and variant.build.cuda and not catalog.toolkit(variant.build.cuda).compiles(code):
        return Coverage(Method.NIX, False, Fit.NONE, None, f"CUDA {variant.build.cuda} does not compile for {code}.")
    return Coverage(Method.NIX, True, Fit.NATIVE, code, f"Recipe {variant.name}.nix.")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
