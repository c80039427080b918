"""Rules that compare a recipe with its file name: pname, architecture, CUDA, Python, platform, CPU flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.variants.variant import Variant
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.rules.base import AuditContext, Severity, recipe_rule, variant_rule
from torchtailor.nix.syntax import TextLine

_SPELLING = re.compile(r"\d{1,2}\.\d[af]?(?:\+PTX)?")


@recipe_rule(
    "pname",
    Severity.ERROR,
    "a pname that is not the file name, under which Flox builds and publishes the package",
    "Set pname to the file name; the version of PyTorch is in `version`.",
)
def pname(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.is_builder or recipe.opaque or not (recipe.is_torch or recipe.is_sibling):
        return
    found = recipe.pname
    if found is None:
        yield 1, f"pname is not set; it must be {recipe.name!r}"
    elif found.text != recipe.name:
        yield found.number, f"pname is {found.text!r}; the file name is {recipe.name!r}"


@recipe_rule(
    "row-name",
    Severity.ERROR,
    "a recipe that calls the library for another GPU, CPU, CUDA or Python than the file name's",
    "Write it again: `torchtailor recipes write --force`.",
)
def row_name(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    variant = recipe.variant
    if not recipe.row or variant is None or recipe.name.endswith("-wrapper"):
        return
    wanted = {
        "gpuArchSM": str(variant.gpu.capability) if variant.gpu else None,
        "cuda": str(variant.build.cuda) if variant.gpu and not recipe.is_wheel else None,
        "cpu": variant.isa.name,
        "python": variant.python,
    }
    for name, value in wanted.items():
        if recipe.row.get(name) != value:
            binding = recipe.row_bindings.get(name)
            given = recipe.row.get(name) or "missing"
            yield binding.line if binding else 1, f"{name} is {given}; the file name has {value or 'none'}"


@variant_rule(
    "arch-name",
    Severity.ERROR,
    "a GPU architecture other than the file name's",
    "Set gpuArchSM to the compute capability in the file name.",
)
def arch_name(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    found = recipe.targets if recipe.builder else recipe.architecture
    if recipe.opaque:
        return
    if variant.gpu is None:
        if recipe.targets and recipe.targets.text:
            yield recipe.targets.number, f"a CPU-only recipe compiles for {recipe.targets.text}"
        return
    wanted = str(variant.gpu.capability)
    if found is None:
        yield 1, f"no architecture is set, so nixpkgs compiles for all of them instead of {wanted}"
        return
    digits = found.text.removeprefix("sm_").replace(".", "").rstrip("af")
    if digits != wanted.replace(".", ""):
        yield found.number, f"the architecture is {found.text}; the file name has {wanted}"


@recipe_rule(
    "arch-spelling",
    Severity.ERROR,
    "`sm_90` where PyTorch expects `9.0`: nixpkgs passes gpuTargets on unchanged",
    "Write the compute capability with a dot.",
)
def arch_spelling(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.readable or recipe.row:
        return
    written = list(recipe.gpu_targets)
    if recipe.is_torch and recipe.variant and (found := recipe.targets or recipe.architecture):
        written.append(found)
    for found in dict.fromkeys(written):
        for word in found.text.split(";"):
            if word and not _SPELLING.fullmatch(word):
                yield found.number, f"gpuTargets has {word!r}, which is not valid in TORCH_CUDA_ARCH_LIST"


def _listed_capabilities(recipe: Recipe) -> Mapping[str, Sequence[TextLine]]:
    """The lists of compute capabilities that a package of torch has, by their names."""
    source = recipe.source
    found = {
        outer.name: [
            line
            for binding in (outer, *source.below(outer))
            for line in source.lines(binding.node)
            if "${" not in line.text
        ]
        for outer in source.bindings
        if outer.name.lower().endswith("capabilities")
    }
    return {name: lines for name, lines in found.items() if lines} if recipe.is_package else {}


@recipe_rule(
    "capability-list",
    Severity.WARNING,
    "a package of torch whose list of compute capabilities has one twice, or what is none",
    "Write each once, with a dot: `9.0`, `9.0a`.",
)
def capability_list(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    for name, lines in _listed_capabilities(recipe).items():
        seen: set[str] = set()
        for line in lines:
            if not _SPELLING.fullmatch(line.text):
                yield line.number, f"{name} has {line.text!r}, which is no compute capability"
            elif line.text in seen:
                yield line.number, f"{name} has {line.text} twice"
            seen.add(line.text)


@recipe_rule(
    "capability-missing",
    Severity.NOTE,
    "a package of torch whose list of compute capabilities lacks GPUs: `cudaCapabilities` does not compile for them",
    "Override it with `gpuTargets`, as `torchtailor recipes write` does, or add them to the list.",
)
def capability_missing(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    for name, lines in _listed_capabilities(recipe).items():
        listed = {line.text for line in lines}
        newest = context.catalog.toolkits[max(context.catalog.toolkits)]
        if missing := [str(gpu) for gpu in sorted(newest.architectures) if str(gpu) not in listed]:
            yield lines[0].number, f"{name} lacks {', '.join(missing)}"


@recipe_rule(
    "arch-list",
    Severity.WARNING,
    "TORCH_CUDA_ARCH_LIST or CMAKE_CUDA_ARCHITECTURES set in addition to gpuTargets",
    "Set only gpuTargets; nixpkgs derives TORCH_CUDA_ARCH_LIST from it.",
)
def arch_list(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    for name in ("TORCH_CUDA_ARCH_LIST", "CMAKE_CUDA_ARCHITECTURES"):
        if name in recipe.exported:
            yield recipe.exported[name][1], f"{name} is set in addition to gpuTargets"


@variant_rule(
    "cuda-name",
    Severity.ERROR,
    "a CUDA version other than the file name's",
    "Set cudaPackages to the version in the file name, with an overlay.",
)
def cuda_name(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    wanted = str(variant.build.cuda) if variant.build.cuda else None
    for selection in recipe.source.selections:
        match = re.fullmatch(r"(?:.*\.)?cudaPackages_(\d+)_(\d+)(?:\..*)?", selection.text)
        if match and f"{match[1]}.{match[2]}" != wanted:
            yield (
                selection.number,
                f"it uses CUDA {match[1]}.{match[2]}; the file name has {wanted or 'no CUDA'}",
            )
            return
    if recipe.evaluated and recipe.evaluated.torch and recipe.evaluated.cuda != wanted:
        yield (
            1,
            f"it evaluates to CUDA {recipe.evaluated.cuda or 'none'}; the file name has {wanted or 'no CUDA'}",
        )


@variant_rule(
    "python-name",
    Severity.ERROR,
    "a Python version other than the file name's",
    "Use torch from the Python package set in the file name.",
)
def python_name(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    for selection in recipe.source.selections:
        match = re.search(r"\bpython3(\d+)Packages\b", selection.text)
        if match and f"3.{match[1]}" != variant.python:
            yield selection.number, f"it uses Python 3.{match[1]}; the file name has {variant.python}"
            return
    if recipe.evaluated and recipe.evaluated.python not in (None, variant.python):
        yield 1, f"it evaluates to Python {recipe.evaluated.python}; the file name has {variant.python}"


@recipe_rule(
    "platform",
    Severity.ERROR,
    "platforms that do not match the CPU: x86_64 instruction sets with aarch64-linux, the reverse, or none",
    "Set meta.platforms to the platform of the instruction set.",
)
def platform(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    variant = recipe.variant
    if variant is None or recipe.row or not (recipe.is_torch or recipe.is_sibling or recipe.is_wheel):
        return
    if recipe.opaque:
        return
    if recipe.platforms is None or (recipe.source.last("platforms") is None and not recipe.builder):
        yield 1, f'meta.platforms is not set; it must be [ "{variant.platform}" ]'
        return
    found, line = recipe.platforms
    if set(found) != {variant.platform}:
        yield line, f"platforms are {', '.join(found) or 'empty'}; {variant.isa.label} needs {variant.platform}"


@variant_rule(
    "cpu-flags",
    Severity.ERROR,
    "compiler flags of another instruction set",
    "Use the flags that the catalog has for the instruction set.",
)
def cpu_flags(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    found = recipe.cpu_flags
    isa = variant.isa
    if recipe.builder:
        return
    if found is None:
        yield 1, f"no CPU flags are set; {isa.label} needs {' '.join(isa.compile_flags)}"
    elif not fits_isa(isa, found.text.split()):
        yield (
            found.number,
            f"the flags are {found.text or 'none'}; {isa.label} needs {' '.join(isa.compile_flags)}",
        )


def fits_isa(isa: Isa, flags: Sequence[str]) -> bool:
    """Whether flags select exactly this instruction set; tuning and optimisation do not matter."""
    selecting = {flag for flag in flags if flag.startswith("-m") and not flag.startswith("-mtune=")}
    return selecting in ({*isa.compile_flags}, {*isa.seed_flags})


@variant_rule(
    "cpu-flags-unused",
    Severity.ERROR,
    "CPU flags that are not passed to the compilers",
    "Export CFLAGS and CXXFLAGS with the flags in preConfigure.",
)
def cpu_flags_unused(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.cpu_flags is None:
        return
    for name in ("CFLAGS", "CXXFLAGS"):
        value = recipe.exported.get(name, ("", 0))[0]
        used = any("cpuFlags" in line.text or recipe.cpu_flags.text in line.text
                   for line in recipe.phases.get("preConfigure", ()) if name in line.text)  # fmt: skip
        if not used and "cpuFlags" not in value:
            yield recipe.cpu_flags.number, f"{name} does not include the CPU flags"


@recipe_rule(
    "sibling-torch",
    Severity.ERROR,
    "a torchvision or torchaudio that is not built on the torch of its file name, or for another GPU",
    "Import the recipe of torch of the same name, as `torchtailor recipes write --with torchvision` does.",
)
def sibling_torch(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    variant, name = recipe.variant, recipe.recipe_name
    if not recipe.is_sibling or variant is None or name is None or recipe.builder:
        return
    imported = [path for path in recipe.source.paths if "pytorch" in path.text]
    for path in imported:
        if path.text != f"./{name.base}.nix":
            yield path.number, f"it is built on {path.text}, not on ./{name.base}.nix"
    given = {binding.name for call, _, argument in recipe.source.calls if call.endswith(f".{name.package}.override")
             for binding in recipe.source.inside(argument)}  # fmt: skip
    if not imported and "torch" not in {*given, *recipe.row} and not _inherits_torch(recipe):
        yield 1, f"it is built on nixpkgs' own torch, not on {name.base}"
    targets = recipe.evaluated.arch_list if recipe.evaluated else None
    if variant.gpu and targets and targets != str(variant.gpu.capability):
        yield 1, f"it is compiled for {targets}; the file name has {variant.gpu.capability}"


def _inherits_torch(recipe: Recipe) -> bool:
    """Whether an override says `inherit torch;`."""
    return bool(re.search(r"\.override\s*\{[^}]*\binherit\s+torch\s*;", recipe.source.code_text))


@recipe_rule(
    "wheel-target",
    Severity.ERROR,
    "a recipe from wheels with a wheel of torch for another Python than the file name's",
    "Write it again: `torchtailor recipes write --via wheel`.",
)
def wheel_target(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    variant = recipe.variant
    if not recipe.is_wheel or not recipe.readable or variant is None:
        return
    tag = f"cp{variant.python.replace('.', '')}"
    for binding in recipe.source.named("pname"):
        if recipe.source.value(binding.node) == "torch":
            wheel = recipe.source.inside(binding.node.parent.parent.parent)  # binding, binding set, attribute set
            python = next((recipe.source.value(item.node) for item in wheel if item.name == "python"), None)
            if python != tag:
                yield binding.line, f"the wheel of torch is for {python}; the file name has {tag}"
