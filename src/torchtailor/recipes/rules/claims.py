"""Rules about what people read: comments and descriptions must not contradict the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import Capability
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.versions import Dotted
from torchtailor.recipes.blueprint import driver_floors
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.rules.base import Context, Severity, expected, recipe_rule

_CUDA = re.compile(r"\bCUDA[ :=_-]{0,3}v?(\d{1,2})(?:\.(\d+))?(?:\.\d+)*(\+)?", re.IGNORECASE)
_SM = re.compile(r"\bSM[ _-]?(\d{2,3})[af]?\b", re.IGNORECASE)
_CAPABILITY = re.compile(r"compute capability (\d{1,2}\.\d)\b", re.IGNORECASE)
_DRIVER = re.compile(r"\bdriver\b[^\d\n]{0,24}(\d{3}(?:\.\d+){0,2})", re.IGNORECASE)
_NAME = re.compile(r"\bpytorch\d*-python\d{3}-(?:cuda\d+_\d+-)?(?:sm\d{2,3}|cpu)-[a-z0-9_]+(?:-[a-z0-9_-]+)?")
_NOT = re.compile(r"\bnot\b", re.IGNORECASE)
_ABOUT_CPU = re.compile(r"\W*CPU\b")  # GB10 and Thor are names of CPUs too


@recipe_rule(
    "claim-cuda",
    Severity.ERROR,
    "a comment or description that names another CUDA version than the code",
    "Say the version that is built.",
)
def claim_cuda(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.build.cuda is None:
        return
    major, minor = variant.build.cuda.parts[:2]
    for claim in recipe.claims:
        for match in _CUDA.finditer(claim.text):
            if match[3]:  # `12.9+` is a floor
                continue
            if int(match[1]) != major or (match[2] is not None and int(match[2]) != minor):
                yield claim.number, f"it says {match[0].strip()}; the recipe is for CUDA {variant.build.cuda}"


@recipe_rule(
    "claim-gpu",
    Severity.ERROR,
    "a comment or description that names another GPU architecture",
    "Name the architecture that is built.",
)
def claim_gpu(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.gpu is None:
        return
    for claim in recipe.claims:
        said = [Capability.from_number(int(match[1])) for match in _SM.finditer(claim.text)]
        said += [Capability.parse(match[1]) for match in _CAPABILITY.finditer(claim.text)]
        for capability in dict.fromkeys(said):
            if capability != variant.gpu.capability and capability in context.catalog.gpus:
                yield (
                    claim.number,
                    f"it says {capability.sm.upper()}; the recipe is for {variant.gpu.sm.upper()}",
                )


@recipe_rule(
    "claim-product",
    Severity.ERROR,
    "a comment or description that names a GPU of another architecture (L40S under SM90, B200 under SM103)",
    "Name products of this architecture; `torchtailor matrix` lists them.",
)
def claim_product(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.gpu is None:
        return
    pattern, owners = _products(context.catalog)
    for claim in recipe.claims:
        if _NOT.search(claim.text) or _ABOUT_CPU.match(claim.text):
            continue
        for match in pattern.finditer(claim.text):
            capabilities = owners[match[0].lower()]
            if variant.gpu.capability not in capabilities:
                of = " and ".join(capability.sm.upper() for capability in capabilities)
                yield (
                    claim.number,
                    f"it names {match[0]}, which is {of}; the recipe is for {variant.gpu.sm.upper()}",
                )


@recipe_rule(
    "claim-cpu",
    Severity.ERROR,
    "a comment or description that promises a CPU which lacks the instruction set (Graviton3 has no SVE2)",
    "Name CPUs that run the instruction set.",
)
def claim_cpu(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    lacking = _lacking(variant.isa)
    for claim in recipe.claims:
        if _NOT.search(claim.text):
            continue
        for name in lacking:
            if re.search(rf"(?<![\w-]){re.escape(name)}(?!\d)", claim.text, re.IGNORECASE):
                yield claim.number, f"it names {name}, which does not run {variant.isa.label}"


@recipe_rule(
    "claim-name",
    Severity.ERROR,
    "a comment or description that names another recipe as its own",
    "Name this recipe.",
)
def claim_name(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if expected(recipe) is None or recipe.recipe_name is None:
        return
    own = {recipe.name, recipe.recipe_name.base, recipe.pname.text if recipe.pname else recipe.name}
    for claim in recipe.claims:
        for match in _NAME.finditer(claim.text):
            if match[0] not in own:
                yield claim.number, f"it names {match[0]}, but this is {recipe.name}"


@recipe_rule(
    "driver-floor",
    Severity.ERROR,
    "a driver that cannot run the build",
    "Name the driver floor of the CUDA version and the GPU.",
)
def driver_floor(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    for line, claimed, full, least in _driver_claims(recipe, context):
        if claimed < _cut(least, claimed):
            yield line, f"driver {claimed} is named; CUDA needs {full} ({least} at the very least)"


@recipe_rule(
    "driver-minor",
    Severity.WARNING,
    "a driver that runs the build by minor-version compatibility alone, without saying so",
    "Name the toolkit's own driver, or say that it is minor-version compatibility.",
)
def driver_minor(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    for line, claimed, full, least in _driver_claims(recipe, context):
        if _cut(least, claimed) <= claimed < _cut(full, claimed):
            yield (
                line,
                f"driver {claimed} works by minor-version compatibility alone; the toolkit's own is {full}",
            )


def _driver_claims(recipe: Recipe, context: Context) -> Iterator[tuple[int, Dotted, Dotted, Dotted]]:
    variant = expected(recipe)
    if variant is None or variant.gpu is None or variant.build.cuda is None:
        return
    least, full = driver_floors(context.catalog, context.pin, variant.gpu, variant.build.cuda)
    for claim in recipe.claims:
        if "minor-version" in claim.text and _CUDA.search(claim.text) is None and str(full) in claim.text:
            continue
        for match in _DRIVER.finditer(claim.text):
            yield claim.number, Dotted(match[1]), full, least


def _cut(version: Dotted, like: Dotted) -> Dotted:
    """The version to as many places as another has: `580` is said to mean 580.65.06 as well."""
    return Dotted(".".join(version.text.split(".")[: len(like.parts)]))


@lru_cache(maxsize=4)
def _product_table(
    items: tuple[tuple[str, Capability], ...],
) -> tuple[re.Pattern[str], Mapping[str, list[Capability]]]:
    owners: dict[str, list[Capability]] = {}
    for product, capability in items:
        owners.setdefault(product.lower(), []).append(capability)
    names = sorted(owners, key=len, reverse=True)  # L40S before L40
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w])", re.IGNORECASE)
    return pattern, owners


def _products(catalog: Catalog) -> tuple[re.Pattern[str], Mapping[str, list[Capability]]]:
    return _product_table(
        tuple((product, gpu.capability) for gpu in catalog.gpus.values() for product in gpu.all_products)
    )


def _lacking(isa: Isa) -> tuple[str, ...]:
    """CPUs that the catalog says do not run an instruction set."""
    texts = [isa.not_on, *re.findall(r"\(NOT ([^)]*)\)", " ".join(isa.first))]
    bare = re.sub(r"\([^)]*\)", "", ", ".join(texts))
    names = (name.strip() for name in re.split(r"[,/;]", bare))
    return tuple(name for name in names if len(name) > 3 and re.search(r"[A-Z]", name))
