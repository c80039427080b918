"""Rules about what reaches the build: overlays, flags, patches, jobs, what must be off."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.recipes.blueprint import Blueprint
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.rules.base import Context, Severity, expected, recipe_rule

_HANDED_OVER = ("USE_", "BUILD_", "CMAKE_")  # environment variables that PyTorch's setup.py hands to CMake
_NIXPKGS_FLAG = "CUDAToolkit_VERSION"  # nixpkgs' torch has it among its cmakeFlags by itself
_OFF = frozenset({"0", "OFF", "off", "FALSE", "False", "false", "NO", "N"})


@recipe_rule(
    "flags-unreached",
    Severity.ERROR,
    "cmakeFlags: nixpkgs builds torch through setup.py, so they reach nothing",
    "Export USE_*, BUILD_* or CMAKE_* variables in preConfigure, or give CMake a file of cache variables.",
)
def flags_unreached(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    if binding := recipe.attribute("cmakeFlags"):
        yield binding.line, "cmakeFlags do not reach CMake"
    elif recipe.evaluated and any(_NIXPKGS_FLAG not in flag for flag in recipe.evaluated.cmake_flags):
        yield 1, "cmakeFlags do not reach CMake"
    for name, line in recipe.assigned("cmakeFlags", "cmakeFlagsArray"):
        yield line, f"{name} do not reach CMake"


@recipe_rule(
    "cache-unreached",
    Severity.ERROR,
    "a CMake cache variable exported as an environment variable, which setup.py does not hand over",
    "Write it into the file that CMAKE_PROJECT_TOP_LEVEL_INCLUDES names.",
)
def cache_unreached(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    cache = {name for row in context.pins.file.without for name in row.cache}
    for name, (_, line) in recipe.exported.items():
        if name in cache and not name.startswith(_HANDED_OVER):
            yield line, f"{name} is a CMake cache variable: exporting it does nothing"


@recipe_rule(
    "jobs-overwritten",
    Severity.ERROR,
    "a job limit that is overwritten: nixpkgs sets MAX_JOBS from NIX_BUILD_CORES, and ninjaFlags are not used",
    "Limit NIX_BUILD_CORES before nixpkgs' preBuild.",
)
def jobs_overwritten(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    if binding := recipe.attribute("ninjaFlags"):
        yield binding.line, "ninjaFlags are not used by torch's build"
    for name, line in recipe.assigned("ninjaFlags", "ninjaFlagsArray"):
        yield line, f"{name} are not used by torch's build"
    if "MAX_JOBS" in recipe.exported:
        yield recipe.exported["MAX_JOBS"][1], "MAX_JOBS is overwritten by nixpkgs' preBuild"


@recipe_rule(
    "jobs-memory",
    Severity.WARNING,
    "a build that starts a compiler per core whatever the memory is",
    "Lower NIX_BUILD_CORES in preBuild to what memory has room for.",
)
def jobs_memory(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) and not any("NIX_BUILD_CORES" in line.text for line in recipe.phases.get("preBuild", ())):
        yield 1, "the job count does not follow memory"


@recipe_rule(
    "patches-dropped",
    Severity.ERROR,
    "`patches = [ ]` although nixpkgs' patches are for this very version",
    "Leave patches alone.",
)
def patches_dropped(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) and not recipe.upgrade and context.owns(recipe):
        for line in recipe.cleared_patches:
            yield line, f"nixpkgs' patches for PyTorch {context.pin.torch} are dropped"


@recipe_rule(
    "toolkit-stub",
    Severity.ERROR,
    "nixpkgs' patches dropped and no FindCUDAToolkit put back, which PyTorch's install step wants",
    "Write cmake/Modules/FindCUDAToolkit.cmake in postPatch; it includes CMake's own module.",
)
def toolkit_stub(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.gpu is None or not recipe.cleared_patches:
        return
    writes = [command for command in recipe.shell if not command.document and "FindCUDAToolkit.cmake" in command.text]
    if not any(">" in command.text or command.words[0] in ("cp", "install", "ln") for command in writes):
        yield recipe.cleared_patches[0], "patches are cleared and no FindCUDAToolkit.cmake is put back"


@recipe_rule(
    "overlay-cuda",
    Severity.ERROR,
    "no overlay that sets cudaPackages for every package",
    "Add the overlay: `(final: prev: { cudaPackages = final.cudaPackages_13_0; })`.",
)
def overlay_cuda(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant and variant.gpu and recipe.overrides_torch and not recipe.sets_cuda:
        yield 1, f"nothing sets cudaPackages to CUDA {variant.build.cuda}"


@recipe_rule(
    "overlay-magma",
    Severity.ERROR,
    "MAGMA without its patch for CUDA 13 (clockRate)",
    "Add the overlay with the upstream patch 235aefb7.",
)
def overlay_magma(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    magma = context.pins.file.magma
    if variant is None or variant.build.cuda is None or variant.build.cuda.major != magma.cuda_major:
        return
    patched = _is_among_patches(recipe, magma.commit[:8])
    if recipe.evaluated and recipe.evaluated.torch:
        patched = patched and bool(recipe.evaluated.magma_patches)
    if not patched:
        yield 1, f"MAGMA is not patched for CUDA {magma.cuda_major} ({magma.commit[:8]})"


def _is_among_patches(recipe: Recipe, commit: str) -> bool:
    """Whether a commit stands in `patches`, or in something that `patches` names."""
    source = recipe.source
    patches = " ".join(source.code(binding.node) for binding in source.named("patches"))
    named = [binding for binding in source.bindings if binding.name in patches.split()]
    return commit in patches or any(commit in source.code(binding.node) for binding in named)


@recipe_rule(
    "magma-off",
    Severity.ERROR,
    "MAGMA disabled or filtered out",
    "Take the switch out: MAGMA works with its patch.",
)
def magma_off(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    value, line = recipe.exported.get("USE_MAGMA", ("1", 0))
    if value in _OFF:
        yield line, "USE_MAGMA is off"
    for text in recipe.source.strings:
        if text.text.strip() in {f"-DUSE_MAGMA={off}" for off in _OFF}:
            yield text.number, "USE_MAGMA is off"
    for binding in recipe.source.named("filterMagma"):
        yield binding.line, "MAGMA is filtered out of the inputs"


@recipe_rule(
    "overlay-torch",
    Severity.ERROR,
    "a PyTorch version other than the release's",
    "Add the overlay that gives torch the release's version and source.",
)
def overlay_torch(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) is None or recipe.nightly or not recipe.overrides_torch or not context.owns(recipe):
        return
    wanted = str(context.release.version)
    if recipe.upgrade and recipe.upgrade.text != wanted:
        yield (
            recipe.upgrade.number,
            f"torch is set to {recipe.upgrade.text}; release {context.release.name} is {wanted}",
        )
    elif not recipe.upgrade and context.upgrades():
        yield 1, f"torch stays at nixpkgs' {context.pin.torch}; release {context.release.name} is {wanted}"


@recipe_rule(
    "version-fixes",
    Severity.ERROR,
    "another source without the versions that setup.py, CMake and the wheel read",
    "Export PYTORCH_BUILD_VERSION and write version.txt in preConfigure.",
)
def version_fixes(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) is None or recipe.upgrade is None:
        return
    version = recipe.upgrade.text
    if recipe.exported.get("PYTORCH_BUILD_VERSION", ("", 0))[0] != version:
        yield recipe.upgrade.number, f"PYTORCH_BUILD_VERSION is not {version}"
    if not any(version in command.text for command in recipe.commands_with("version.txt")):
        yield recipe.upgrade.number, f"version.txt is not {version}"


@recipe_rule(
    "cccl-links",
    Severity.ERROR,
    "CUDA 13 without the include links that CUTLASS wants (cuda, cub, thrust, nv)",
    "Link the four folders of cuda_cccl below a folder named cccl, and give it to the compilers with -I.",
)
def cccl_links(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.build.cuda is None or variant.build.cuda.major < 13 or not recipe.overrides_torch:
        return
    links = [command.text for command in recipe.commands_with("ln", "cccl")]
    missing = [
        name for name in ("cuda", "cub", "thrust", "nv") if not any(f"include/{name} " in link for link in links)
    ]
    if missing:
        yield 1, f"no compatibility link for {', '.join(missing)}"


@recipe_rule(
    "broken-refused",
    Severity.ERROR,
    "CUDA 13 without allowBroken: nixpkgs refuses to evaluate it",
    "Set `allowBroken = true;` in the configuration of the pinned nixpkgs.",
)
def broken_refused(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.build.cuda is None or variant.build.cuda.major not in context.pin.broken_cuda:
        return
    allowed = any(recipe.source.value(binding.node) is True for binding in recipe.source.named("allowBroken"))
    if not allowed:
        yield (
            1,
            f"nixpkgs marks its torch broken with CUDA {variant.build.cuda.major}, and allowBroken is not set",
        )


@recipe_rule(
    "unfree-refused",
    Severity.ERROR,
    "CUDA without allowUnfree: nixpkgs refuses to evaluate it",
    "Set `allowUnfree = true;` in the configuration of the pinned nixpkgs.",
)
def unfree_refused(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.gpu is None or not recipe.pins:
        return
    if not any(recipe.source.value(binding.node) is True for binding in recipe.source.named("allowUnfree")):
        yield 1, "CUDA is unfree, and allowUnfree is not set"


@recipe_rule(
    "attribute-pytorch",
    Severity.ERROR,
    "`pytorch` instead of `torch`: only an alias of nixpkgs, which overlays miss",
    "Select `torch`.",
)
def attribute_pytorch(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    for selection in recipe.source.selections:
        words = selection.text.split(".")
        if "pytorch" in words[1:]:
            yield selection.number, f"{selection.text} is an alias of torch"
            return


@recipe_rule(
    "foreign-pattern",
    Severity.ERROR,
    "PyTorch built from scratch instead of nixpkgs' torch with overrides",
    "Override torch: nixpkgs' fixes come with it.",
)
def foreign_pattern(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.is_torch and not recipe.overrides_torch:
        builders = ("buildPythonPackage", "mkDerivation", "callPackage")
        line = next((line for name, line, _ in recipe.source.calls if name.endswith(builders)), 1)
        yield line, "it does not override nixpkgs' torch"


@recipe_rule(
    "cuda-off",
    Severity.ERROR,
    "a GPU recipe without cudaSupport, or a CPU recipe with it",
    "Set cudaSupport in `torch.override`.",
)
def cuda_off(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or not recipe.overrides_torch:
        return
    binding = next((item for item in recipe.override if item.name == "cudaSupport"), None)
    value = recipe.source.value(binding.node) if binding else None
    if variant.gpu and value is not True:
        yield binding.line if binding else 1, "a GPU recipe must set cudaSupport = true in torch.override"
    if not variant.gpu and value is True:
        yield binding.line if binding else 1, "a CPU-only recipe must not set cudaSupport"


@recipe_rule(
    "blas-provider",
    Severity.ERROR,
    "`passthru.blasProvider` set to a string: in nixpkgs it is a package, and others use it as one",
    "Leave blasProvider alone; override `blas` to change it.",
)
def blas_provider(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    for binding in recipe.source.named("blasProvider"):
        if isinstance(recipe.source.value(binding.node), str):
            yield binding.line, "passthru.blasProvider is a string"


@recipe_rule(
    "must-be-off",
    Severity.ERROR,
    "parts that the target cannot run and that are not switched off (FBGEMM, NNPACK, AVX2 kernels; cuDNN for SM61)",
    "Export the switches in preConfigure, and set the cache variables in the file CMake reads first.",
)
def must_be_off(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or not recipe.overrides_torch:
        return
    documents = "\n".join(command.text.partition("#")[0] for command in recipe.shell if command.document)
    for row in Blueprint(context.catalog, context.pins, variant).without:
        on = [
            name for name, value in row.exports.items() if recipe.exported.get(name, ("", 0))[0] not in {value, *_OFF}
        ]
        on += [name for name in row.cache if not any(f"set({name} {off}" in documents for off in _OFF)]
        if on:
            yield 1, f"{', '.join(on)} are not off, but {', '.join(row.parts)} {row.why}"
