"""Rules about the build: overlays, flags, patches, jobs, and parts that must be disabled."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.catalog.variants.variant import Variant
from torchtailor.nix.blueprint import Blueprint
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.rules.base import AuditContext, Severity, recipe_rule, variant_rule

_PASSED_ON = ("USE_", "BUILD_", "CMAKE_")  # environment variables that PyTorch's setup.py passes on to CMake
_NIXPKGS_FLAG = "CUDAToolkit_VERSION"  # set by nixpkgs' torch itself
_OFF = frozenset({"0", "OFF", "off", "FALSE", "False", "false", "NO", "N"})


@recipe_rule(
    "flags-unreached",
    Severity.ERROR,
    "cmakeFlags, which have no effect because nixpkgs builds torch through setup.py",
    "Export USE_*, BUILD_* or CMAKE_* variables in preConfigure, or write CMake cache variables to a file.",
)
def flags_unreached(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
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
    "a CMake cache variable exported as an environment variable, which setup.py does not pass on",
    "Set it in the file named by CMAKE_PROJECT_TOP_LEVEL_INCLUDES.",
)
def cache_unreached(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    cache = {name for row in context.pins.file.without for name in row.cache}
    for name, (_, line) in recipe.exported.items():
        if name in cache and not name.startswith(_PASSED_ON):
            yield line, f"{name} is a CMake cache variable: exporting it has no effect"


@recipe_rule(
    "jobs-overwritten",
    Severity.ERROR,
    "a job limit without effect: nixpkgs sets MAX_JOBS from NIX_BUILD_CORES and ignores ninjaFlags",
    "Lower NIX_BUILD_CORES before nixpkgs' preBuild.",
)
def jobs_overwritten(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    if binding := recipe.attribute("ninjaFlags"):
        yield binding.line, "ninjaFlags are not used by torch's build"
    for name, line in recipe.assigned("ninjaFlags", "ninjaFlagsArray"):
        yield line, f"{name} are not used by torch's build"
    if "MAX_JOBS" in recipe.exported:
        yield recipe.exported["MAX_JOBS"][1], "MAX_JOBS is overwritten by nixpkgs' preBuild"


@variant_rule(
    "patches-dropped",
    Severity.ERROR,
    "`patches = [ ]` although nixpkgs' patches are for this version",
    "Remove the line.",
)
def patches_dropped(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    pin = context.pin_of(recipe)
    if pin and not recipe.upgrade and context.owns(recipe):
        for line in recipe.cleared_patches:
            yield line, f"nixpkgs' patches for PyTorch {pin.torch} are dropped"


@variant_rule(
    "toolkit-stub",
    Severity.ERROR,
    "nixpkgs' patches dropped without a replacement for FindCUDAToolkit.cmake, which PyTorch installs; at an unknown "
    "pin, whose patches may be others, a note",
    "Write a cmake/Modules/FindCUDAToolkit.cmake in postPatch that includes CMake's own module.",
    note_if=lambda recipe, context: not context.knows_pins(recipe),
)
def toolkit_stub(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.gpu is None or not recipe.cleared_patches:
        return
    writes = [command for command in recipe.shell if not command.document and "FindCUDAToolkit.cmake" in command.text]
    if not any(">" in command.text or command.words[0] in ("cp", "install", "ln") for command in writes):
        yield recipe.cleared_patches[0], "patches are dropped, and FindCUDAToolkit.cmake is not replaced"


@variant_rule(
    "overlay-cuda",
    Severity.ERROR,
    "no overlay that sets cudaPackages for all packages",
    "Add the overlay: `(final: prev: { cudaPackages = final.cudaPackages_13_0; })`.",
)
def overlay_cuda(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.gpu and recipe.overrides_torch and not recipe.sets_cuda:
        yield 1, f"no overlay sets cudaPackages to CUDA {variant.build.cuda}"


@variant_rule(
    "overlay-magma",
    Severity.ERROR,
    "MAGMA without its patch for CUDA 13 (clockRate)",
    "Add the overlay with the upstream patch 235aefb7.",
)
def overlay_magma(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    magma = context.pins.file.magma
    if variant.build.cuda is None or variant.build.cuda.major != magma.cuda_major or context.pin_of(recipe) is None:
        return
    if recipe.opaque:
        return
    patched = recipe.builder is not None or _is_among_patches(recipe, magma.commit[:8])
    if recipe.evaluated and recipe.evaluated.torch:
        patched = patched and bool(recipe.evaluated.magma_patches)
    if not patched:
        yield 1, f"MAGMA is not patched for CUDA {magma.cuda_major} ({magma.commit[:8]})"


def _is_among_patches(recipe: Recipe, commit: str) -> bool:
    """Whether a commit occurs in `patches`, or in a binding that `patches` refers to."""
    source = recipe.source
    patches = " ".join(source.code(binding.node) for binding in source.named("patches"))
    named = [binding for binding in source.bindings if binding.name in patches.split()]
    return commit in patches or any(commit in source.code(binding.node) for binding in named)


@recipe_rule(
    "magma-off",
    Severity.ERROR,
    "MAGMA disabled or filtered out",
    "Remove the switch: MAGMA works with its patch.",
)
def magma_off(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
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


@variant_rule(
    "overlay-torch",
    Severity.ERROR,
    "a PyTorch version other than the release's",
    "Add the overlay that sets torch's version and source.",
)
def overlay_torch(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.nightly or not recipe.overrides_torch or not context.owns(recipe):
        return
    wanted = str(context.release.version)
    if recipe.upgrade and recipe.upgrade.text != wanted:
        yield (
            recipe.upgrade.number,
            f"torch is set to {recipe.upgrade.text}; release {context.release.recipe_name} is {wanted}",
        )
    elif not recipe.upgrade and (pin := context.pin_of(recipe)) and pin.torch != wanted:
        yield 1, f"torch is nixpkgs' {pin.torch}; release {context.release.recipe_name} is {wanted}"


@variant_rule(
    "version-fixes",
    Severity.ERROR,
    "a new source without the version files and variables that setup.py and CMake read",
    "Export PYTORCH_BUILD_VERSION and write version.txt in preConfigure.",
)
def version_fixes(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.upgrade is None:
        return
    version = recipe.upgrade.text
    if recipe.exported.get("PYTORCH_BUILD_VERSION", ("", 0))[0] != version:
        yield recipe.upgrade.number, f"PYTORCH_BUILD_VERSION is not {version}"
    if not any(version in command.text for command in recipe.commands_with("version.txt")):
        yield recipe.upgrade.number, f"version.txt is not {version}"


@variant_rule(
    "cccl-links",
    Severity.ERROR,
    "CUDA 13 without the include links that CUTLASS needs (cuda, cub, thrust, nv)",
    "Link the four folders of cuda_cccl into a folder named cccl, and add its parent with -I.",
)
def cccl_links(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.build.cuda is None or variant.build.cuda.major < 13 or not recipe.overrides_torch:
        return
    if context.pin_of(recipe) is None:
        return
    links = [command.text for command in recipe.commands_with("ln", "cccl")]
    missing = [
        name for name in ("cuda", "cub", "thrust", "nv") if not any(f"include/{name} " in link for link in links)
    ]
    if missing:
        yield 1, f"no compatibility link for {', '.join(missing)}"


@variant_rule(
    "broken-refused",
    Severity.ERROR,
    "CUDA 13 without allowBroken: nixpkgs refuses to evaluate it",
    "Set `allowBroken = true;` in the configuration of the pinned nixpkgs.",
)
def broken_refused(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    pin = context.pin_of(recipe)
    if pin is None or variant.build.cuda is None or variant.build.cuda.major not in pin.broken_cuda or recipe.builder:
        return
    allowed = any(recipe.source.value(binding.node) is True for binding in recipe.source.named("allowBroken"))
    if not allowed:
        yield (
            1,
            f"nixpkgs marks torch as broken with CUDA {variant.build.cuda.major}, and allowBroken is not set",
        )


@variant_rule(
    "unfree-refused",
    Severity.ERROR,
    "CUDA without allowUnfree: nixpkgs refuses to evaluate it",
    "Set `allowUnfree = true;` in the configuration of the pinned nixpkgs.",
)
def unfree_refused(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.gpu is None or not recipe.pins:
        return
    if not any(recipe.source.value(binding.node) is True for binding in recipe.source.named("allowUnfree")):
        yield 1, "CUDA is unfree, and allowUnfree is not set"


@recipe_rule(
    "attribute-pytorch",
    Severity.ERROR,
    "`pytorch` instead of `torch`: an alias in nixpkgs that overlays do not change",
    "Use `torch`.",
)
def attribute_pytorch(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
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
    "Override torch, which keeps nixpkgs' fixes.",
)
def foreign_pattern(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.is_torch and not recipe.row and not recipe.builder and not recipe.overrides_torch:
        builders = ("buildPythonPackage", "mkDerivation", "callPackage")
        line = next((line for name, line, _ in recipe.source.calls if name.endswith(builders)), 1)
        yield line, "nixpkgs' torch is not overridden"


@variant_rule(
    "cuda-off",
    Severity.ERROR,
    "a GPU recipe without cudaSupport, or a CPU recipe with it",
    "Set cudaSupport in `torch.override`.",
)
def cuda_off(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.overrides_torch:
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
    "`passthru.blasProvider` set to a string, although nixpkgs expects a package",
    "Remove it; override `blas` to change the provider.",
)
def blas_provider(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.is_torch:
        return
    for binding in recipe.source.named("blasProvider"):
        if isinstance(recipe.source.value(binding.node), str):
            yield binding.line, "passthru.blasProvider is a string"


@variant_rule(
    "must-be-off",
    Severity.ERROR,
    "parts that the target cannot run and that are not disabled (FBGEMM, NNPACK, AVX2 kernels; cuDNN for SM61)",
    "Export the switches in preConfigure, and set the cache variables in the file that CMake includes first.",
)
def must_be_off(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.overrides_torch:
        return
    documents = "\n".join(command.text.partition("#")[0] for command in recipe.shell if command.document)
    for row in Blueprint(context.catalog, context.pins, variant).without:
        on = [
            name for name, value in row.exports.items() if recipe.exported.get(name, ("", 0))[0] not in {value, *_OFF}
        ]
        on += [name for name in row.cache if not any(f"set({name} {off}" in documents for off in _OFF)]
        if on:
            yield 1, f"{', '.join(on)} must be off: {', '.join(row.parts)} {row.why}"
