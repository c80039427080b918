"""Rules about comments and descriptions, which must not contradict the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import Capability
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.variants.variant import Variant
from torchtailor.nix.blueprint import driver_floors
from torchtailor.nix.recipe import NAME, Recipe
from torchtailor.nix.rules.base import AuditContext, Severity, variant_rule
from torchtailor.nix.sentences import Sentence
from torchtailor.nix.syntax import TextLine

_CUDA = re.compile(r"\bCUDA[ :=_-]{0,3}v?(\d{1,2})(?:\.(\d+))?(?:\.\d+)*(\+)?", re.IGNORECASE)
_SM = re.compile(r"\bSM[ _-]?(\d{2,3})[af]?\b", re.IGNORECASE)
_CAPABILITY = re.compile(r"compute capability (\d{1,2}\.\d)\b", re.IGNORECASE)
_DRIVER = re.compile(r"\bdriver\b[^\d\n]{0,24}(\d{3}(?:\.\d+){0,2})", re.IGNORECASE)
_NAME = re.compile(rf"\b{NAME}(?:-[a-z0-9_-]+)?")
_ABOUT_CPU = re.compile(r"\W*CPU\b")  # GB10 and Thor are names of CPUs too


@variant_rule(
    "claim-cuda",
    Severity.ERROR,
    "a comment or description with another CUDA version than the code",
    "Write the version that is built.",
)
def claim_cuda(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.build.cuda is None:
        return
    major, minor = variant.build.cuda.parts[:2]
    for claim in recipe.claims:
        for match in _CUDA.finditer(claim.text):
            if match[3]:  # `12.9+` is a floor
                continue
            if int(match[1]) != major or (match[2] is not None and int(match[2]) != minor):
                yield claim.number, f"it mentions {match[0].strip()}, but the recipe is for CUDA {variant.build.cuda}"


@variant_rule(
    "claim-gpu",
    Severity.ERROR,
    "a comment or description with another GPU architecture than the code",
    "Write the architecture that is built.",
)
def claim_gpu(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.gpu is None:
        return
    for claim in _own_claims(recipe):
        mentioned = [Capability.from_number(int(match[1])) for match in _SM.finditer(claim.text)]
        mentioned += [Capability.parse(match[1]) for match in _CAPABILITY.finditer(claim.text)]
        for capability in dict.fromkeys(mentioned):
            if capability != variant.gpu.capability and capability in context.catalog.gpus:
                yield (
                    claim.number,
                    f"it mentions {capability.sm.upper()}, but the recipe is for {variant.gpu.sm.upper()}",
                )


@variant_rule(
    "claim-product",
    Severity.ERROR,
    "a comment or description that mentions a GPU of another architecture (L40S in an SM90 recipe, B200 in SM103)",
    "Mention products of this architecture; `torchtailor matrix` lists them.",
)
def claim_product(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.gpu is None:
        return
    pattern, owners = _products(context.catalog)
    for claim in _own_claims(recipe, negated=False):
        if _ABOUT_CPU.match(claim.text):
            continue
        for match in pattern.finditer(claim.text):
            capabilities = owners[match[0].lower()]
            if variant.gpu.capability not in capabilities:
                of = " and ".join(capability.sm.upper() for capability in capabilities)
                yield (
                    claim.number,
                    f"it mentions {match[0]}, which is {of}, but the recipe is for {variant.gpu.sm.upper()}",
                )


@variant_rule(
    "claim-cpu",
    Severity.ERROR,
    "a comment or description that mentions a CPU without the instruction set (Graviton3 has no SVE2)",
    "Mention CPUs that support the instruction set.",
)
def claim_cpu(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    for sentence in recipe.sentences:
        isa = _advised(sentence, context.catalog) if sentence.about_another else variant.isa
        if isa is None or (sentence.negated and not sentence.about_another):
            continue
        for claim in sentence.lines:
            for name in _lacking(isa):
                if re.search(rf"(?<![\w-]){re.escape(name)}(?!\d)", claim.text, re.IGNORECASE):
                    yield claim.number, f"it mentions {name}, which does not support {isa.label}"


@variant_rule(
    "claim-name",
    Severity.ERROR,
    "a comment or description with the name of another recipe",
    "Use the name of this recipe.",
)
def claim_name(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.recipe_name is None:
        return
    own = {recipe.name, recipe.recipe_name.base, recipe.pname.text if recipe.pname else recipe.name}
    for claim in recipe.claims:
        for match in _NAME.finditer(claim.text):
            if match[0] not in own:
                yield claim.number, f"it mentions {match[0]}, but this is {recipe.name}"


@variant_rule(
    "driver-floor",
    Severity.ERROR,
    "a comment or description with a driver that is too old for the build",
    "Write the minimum driver of the CUDA version and the GPU.",
)
def driver_floor(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    for line, claimed, full, least in _driver_claims(recipe, variant, context):
        if claimed < _truncated(least, claimed):
            yield line, f"driver {claimed} is too old: the build needs {least}, and {full} for full support"


@variant_rule(
    "driver-minor",
    Severity.WARNING,
    "a driver that runs the build only by minor-version compatibility, without a remark",
    "Write the toolkit's own driver, or mention minor-version compatibility.",
)
def driver_minor(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    for line, claimed, full, least in _driver_claims(recipe, variant, context):
        if _truncated(least, claimed) <= claimed < _truncated(full, claimed):
            yield (
                line,
                f"driver {claimed} works only by minor-version compatibility; the toolkit's own is {full}",
            )


def _driver_claims(
    recipe: Recipe, variant: Variant, context: AuditContext
) -> Iterator[tuple[int, Dotted, Dotted, Dotted]]:
    if variant.gpu is None or variant.build.cuda is None:
        return
    least, full = driver_floors(context.catalog, context.pin_of(recipe), variant.gpu, variant.build.cuda)
    for claim in recipe.claims:
        if "minor-version" in claim.text and _CUDA.search(claim.text) is None and str(full) in claim.text:
            continue
        for match in _DRIVER.finditer(claim.text):
            yield claim.number, Dotted(match[1]), full, least


def _truncated(version: Dotted, like: Dotted) -> Dotted:
    """A version truncated to the precision of another one: `580` covers 580.65.06."""
    return Dotted(".".join(version.text.split(".")[: len(like.parts)]))


def _own_claims(recipe: Recipe, *, negated: bool = True) -> Iterator[TextLine]:
    """What a recipe says of itself, not of the recipes that it sends readers to."""
    for sentence in recipe.sentences:
        if not sentence.about_another and (negated or not sentence.negated):
            yield from sentence.lines


def _advised(sentence: Sentence, catalog: Catalog) -> Isa | None:
    """The only instruction set that a sentence advises to use: `use the armv9 variant instead`."""
    words = set(re.findall(r"[a-z0-9_]+", sentence.text.lower()))
    named = [isa for name, isa in catalog.isas.items() if name in words]
    return named[0] if len(named) == 1 else None


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
    """CPUs that do not support an instruction set, by the catalog."""
    texts = [isa.not_on, *re.findall(r"\(NOT ([^)]*)\)", " ".join(isa.first))]
    bare = re.sub(r"\([^)]*\)", "", ", ".join(texts))
    names = (name.strip() for name in re.split(r"[,/;]", bare))
    return tuple(name for name in names if len(name) > 3 and re.search(r"[A-Z]", name))
