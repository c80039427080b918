"""Rules about the file as Nix: whether it can be read, parses, evaluates and is unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.nix.evaluate import check_syntax
from torchtailor.nix.nix import has_nix
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.rules.base import AuditContext, Severity, recipe_rule
from torchtailor.nix.tree import FileOrigin


@recipe_rule(
    "unreadable",
    Severity.ERROR,
    "a file that cannot be read or is not UTF-8 text",
    "Save it as UTF-8, bring back what it links to, or delete it.",
)
def unreadable(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.unread:
        yield recipe.unread.line, f"it {recipe.unread.reason}"


@recipe_rule("syntax", Severity.ERROR, "a file that is not valid Nix", "Fix the syntax, or write the recipe again.")
def syntax(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.readable or recipe.unread:
        return
    error = check_syntax(recipe.path) if has_nix() else None
    if error:
        yield error.line, f"Nix cannot parse it: {error.message}"
    else:
        yield recipe.source.error_line or 1, "syntax error"


@recipe_rule(
    "evaluation",
    Severity.ERROR,
    "a recipe that Nix cannot evaluate: unknown override arguments, attributes or package sets",
    "Use only what nixpkgs has at the pin, as `torchtailor recipes write` does.",
)
def evaluation(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.failed and not recipe.failed.unknown and recipe.readable and not _needs_sibling(recipe):
        yield recipe.failed.line, f"Nix cannot evaluate it: {recipe.failed.message}"


@recipe_rule(
    "sibling-repository",
    Severity.WARNING,
    "a wrapper whose sibling repository is missing",
    "Clone it next to this one, or build the recipe without -wrapper, which uses the components of this folder.",
)
def sibling_repository(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.failed and _needs_sibling(recipe):
        yield recipe.failed.line, f"the sibling repository is missing: {recipe.failed.message}"


def _needs_sibling(recipe: Recipe) -> bool:
    return recipe.name.endswith("-wrapper") and any(path.text.startswith("../") for path in recipe.source.paths)


@recipe_rule(
    "edited",
    Severity.ERROR,
    "a generated recipe that was changed by hand",
    "Change the catalog and run `torchtailor recipes write --force`, or delete the header to maintain it by hand.",
)
def edited(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.origin is FileOrigin.EDITED:
        yield 3, "the text does not match the hash in the header: it was changed by hand"
