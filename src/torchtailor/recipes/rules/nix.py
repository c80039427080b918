"""Rules about the file as Nix: does it parse, does it evaluate."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.recipes.evaluate import check_syntax
from torchtailor.recipes.header import Origin
from torchtailor.recipes.nix import has_nix
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.rules.base import Context, Severity, recipe_rule


@recipe_rule("syntax", Severity.ERROR, "a file that is not Nix", "Mend the syntax, or write the recipe again.")
def syntax(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.readable:
        return
    said = check_syntax(recipe.path) if has_nix() else None
    if said:
        yield said.line, f"Nix cannot parse it: {said.message}"
    else:
        yield recipe.source.error_line or 1, "it is not valid Nix from here on"


@recipe_rule(
    "evaluation",
    Severity.ERROR,
    "a recipe that Nix cannot evaluate: unknown override arguments, attributes, package sets",
    "Use only what nixpkgs has at the pin; `torchtailor recipes write` does.",
)
def evaluation(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.failed and recipe.readable and not _needs_sibling(recipe):
        yield recipe.failed.line, f"Nix cannot evaluate it: {recipe.failed.message}"


@recipe_rule(
    "sibling-repository",
    Severity.WARNING,
    "a wrapper whose sibling repository is not there",
    "Clone it beside this one, or build the recipe without -wrapper, which has its components in this folder.",
)
def sibling_repository(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.failed and _needs_sibling(recipe):
        yield recipe.failed.line, f"what it wraps is not there: {recipe.failed.message}"


def _needs_sibling(recipe: Recipe) -> bool:
    return recipe.name.endswith("-wrapper") and any(path.text.startswith("../") for path in recipe.source.paths)


@recipe_rule(
    "edited",
    Severity.ERROR,
    "a generated recipe that was changed by hand",
    "Change the catalog instead and run `torchtailor recipes write --force`, or delete the head to make it your own.",
)
def edited(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.origin is Origin.EDITED:
        yield 3, "its text does not match the hash in its head: it was changed by hand"
