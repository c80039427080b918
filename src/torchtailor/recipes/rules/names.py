"""Rules about promises of the file's name: pname, architecture, CUDA, Python, platform, CPU flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchtailor.catalog.cpus import Isa
from torchtailor.recipes.blueprint import pname_of
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.rules.base import Context, Severity, expected, recipe_rule

_SPELLING = re.compile(r"\d{1,2}\.\d[af]?(?:\+PTX)?")


@recipe_rule(
    "pname",
    Severity.ERROR,
    "a pname that is not the release's rule: `pytorch210-...` in cuda-13_0, the file's own name elsewhere",
    "Set pname by the rule.",
)
def pname(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    suffix = recipe.recipe_name.suffix if recipe.recipe_name else ""
    wanted = pname_of(variant) + (f"-{suffix}" if suffix else "")
    found = recipe.pname
    if found and not context.owns(recipe) and found.text == recipe.name:
        return
    if found is None:
        yield 1, f"there is no pname; it should be {wanted}"
    elif found.text != wanted:
        yield found.number, f"pname is {found.text!r}; by its file name it should be {wanted!r}"


@recipe_rule(
    "arch-name",
    Severity.ERROR,
    "a GPU architecture other than the file name's",
    "Set gpuArchSM to the compute capability that the file name promises.",
)
def arch_name(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    found = recipe.architecture
    if variant.gpu is None:
        if recipe.targets and recipe.targets.text:
            yield recipe.targets.number, f"a CPU-only recipe compiles for {recipe.targets.text}"
        return
    wanted = str(variant.gpu.capability)
    if found is None:
        yield 1, f"no architecture is set; nixpkgs would compile for all it knows instead of {wanted}"
        return
    digits = found.text.removeprefix("sm_").replace(".", "").rstrip("af")
    if digits != wanted.replace(".", ""):
        yield found.number, f"the architecture is {found.text}, the file name says {wanted}"


@recipe_rule(
    "arch-spelling",
    Severity.ERROR,
    "`sm_90` where PyTorch wants `9.0`: nixpkgs passes gpuTargets on as they are",
    "Write the compute capability with its dot.",
)
def arch_spelling(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) is None:
        return
    found = recipe.targets or recipe.architecture
    if found is None or not found.text:
        return
    for word in found.text.split(";"):
        if not _SPELLING.fullmatch(word):
            yield found.number, f"gpuTargets has {word!r}, which TORCH_CUDA_ARCH_LIST does not know"


@recipe_rule(
    "arch-list",
    Severity.WARNING,
    "TORCH_CUDA_ARCH_LIST or CMAKE_CUDA_ARCHITECTURES set by hand beside gpuTargets",
    "Leave it to gpuTargets, which nixpkgs turns into TORCH_CUDA_ARCH_LIST.",
)
def arch_list(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    for name in ("TORCH_CUDA_ARCH_LIST", "CMAKE_CUDA_ARCHITECTURES"):
        if name in recipe.exported:
            yield recipe.exported[name][1], f"{name} is set by hand"


@recipe_rule(
    "cuda-name",
    Severity.ERROR,
    "a CUDA version other than the file name's",
    "Let an overlay set cudaPackages to the version of the file name.",
)
def cuda_name(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    wanted = str(variant.build.cuda) if variant.build.cuda else None
    for selection in recipe.source.selections:
        match = re.fullmatch(r"(?:.*\.)?cudaPackages_(\d+)_(\d+)(?:\..*)?", selection.text)
        if match and f"{match[1]}.{match[2]}" != wanted:
            yield (
                selection.number,
                f"it uses CUDA {match[1]}.{match[2]}; the file name says {wanted or 'no CUDA'}",
            )
            return
    if recipe.evaluated and recipe.evaluated.torch and recipe.evaluated.cuda != wanted:
        yield (
            1,
            f"it evaluates to CUDA {recipe.evaluated.cuda or 'none'}; the file name says {wanted or 'no CUDA'}",
        )


@recipe_rule(
    "python-name",
    Severity.ERROR,
    "a Python other than the file name's",
    "Take torch from the Python package set of the file name.",
)
def python_name(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    for selection in recipe.source.selections:
        match = re.search(r"\bpython3(\d+)Packages\b", selection.text)
        if match and f"3.{match[1]}" != variant.python:
            yield selection.number, f"it uses Python 3.{match[1]}; the file name says {variant.python}"
            return
    if recipe.evaluated and recipe.evaluated.python not in (None, variant.python):
        yield 1, f"it evaluates to Python {recipe.evaluated.python}; the file name says {variant.python}"


@recipe_rule(
    "platform",
    Severity.ERROR,
    "platforms that do not fit the CPU: an x86 instruction set with aarch64-linux, or the reverse, or none",
    "Set meta.platforms to the one platform of the instruction set.",
)
def platform(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    if recipe.platforms is None or recipe.source.last("platforms") is None:
        yield 1, f'meta.platforms is not set; it should be [ "{variant.platform}" ]'
        return
    found, line = recipe.platforms
    if set(found) != {variant.platform}:
        yield line, f"platforms are {', '.join(found) or 'empty'}; {variant.isa.label} is {variant.platform}"


@recipe_rule(
    "cpu-flags",
    Severity.ERROR,
    "compiler flags that are not the instruction set's",
    "Use the flags of the catalog's instruction set.",
)
def cpu_flags(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    found = recipe.cpu_flags
    isa = variant.isa
    if found is None:
        yield 1, f"no CPU flags are set; {isa.label} needs {' '.join(isa.compile_flags)}"
    elif not fits_isa(isa, found.text.split()):
        yield (
            found.number,
            f"the flags are {found.text or 'none'}; {isa.label} needs {' '.join(isa.compile_flags)}",
        )


def fits_isa(isa: Isa, flags: Sequence[str]) -> bool:
    """Whether flags choose exactly this instruction set; tuning and optimisation are free."""
    choosing = {flag for flag in flags if flag.startswith("-m") and not flag.startswith("-mtune=")}
    return choosing in ({*isa.compile_flags}, {*isa.seed_flags})


@recipe_rule(
    "cpu-flags-unused",
    Severity.ERROR,
    "CPU flags that no compiler is given",
    "Export CFLAGS and CXXFLAGS with the flags in preConfigure.",
)
def cpu_flags_unused(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) is None or recipe.cpu_flags is None:
        return
    for name in ("CFLAGS", "CXXFLAGS"):
        value = recipe.exported.get(name, ("", 0))[0]
        used = any("cpuFlags" in line.text or recipe.cpu_flags.text in line.text
                   for line in recipe.phases.get("preConfigure", ()) if name in line.text)  # fmt: skip
        if not used and "cpuFlags" not in value:
            yield recipe.cpu_flags.number, f"{name} does not carry the CPU flags"
