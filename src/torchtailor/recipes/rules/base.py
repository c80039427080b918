"""What a rule is: an id, a severity, what it looks for, how to mend it, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Release
from torchtailor.recipes.pins import NixpkgsRow, Pins
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.render import spark_names
from torchtailor.recipes.tree import Tree
from torchtailor.variants.matrix import Matrix
from torchtailor.variants.variant import Variant


class Severity(Enum):
    """How bad it is: an error fails the audit, a warning fails a strict one."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Context:
    """All that a rule may look at."""

    catalog: Catalog
    matrix: Matrix
    pins: Pins
    tree: Tree
    release: Release
    recipes: tuple[Recipe, ...]

    @cached_property
    def pin(self) -> NixpkgsRow:
        assert self.release.nixpkgs is not None
        return self.pins.nixpkgs(self.release.nixpkgs)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(recipe.name for recipe in self.recipes)

    @cached_property
    def listed(self) -> frozenset[str]:
        """The names of the release's matrix, for every Python."""
        return frozenset(variant.name for variant in self.matrix.variants(self.release.name, "all"))

    @cached_property
    def spark(self) -> frozenset[str]:
        """What `recipes write --spark` adds to a tree of this release."""
        return spark_names(self.pins) if self.pins.file.spark.release == self.release.name else frozenset()

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons that this tree has recipes for."""
        found = {r.recipe_name.parsed.python for r in self.recipes if r.recipe_name and r.recipe_name.parsed.python}
        return tuple(sorted(found & set(self.release.pythons)))

    def owns(self, recipe: Recipe) -> bool:
        """Whether a recipe is for a CUDA version (or none) that the release has: only then its pin is known."""
        return recipe.variant is None or recipe.variant.build in self.release.builds

    def upgrades(self) -> bool:
        """Whether the release's PyTorch is another than its pin's."""
        return str(self.release.version) != self.pin.torch


RecipeCheck = Callable[[Recipe, Context], Iterator[tuple[int, str]]]
TreeCheck = Callable[[Context], Iterator[tuple[Path, int, str]]]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong."""

    id: str
    severity: Severity
    looks_for: str
    mend: str
    on_recipe: RecipeCheck | None = None
    on_tree: TreeCheck | None = None


RULES: dict[str, Rule] = {}


def _register(rule: Rule) -> None:
    assert rule.id not in RULES, rule.id
    RULES[rule.id] = rule


def recipe_rule(id: str, severity: Severity, looks_for: str, mend: str) -> Callable[[RecipeCheck], RecipeCheck]:
    """Register a function that looks at one recipe and yields lines and messages."""

    def register(check: RecipeCheck) -> RecipeCheck:
        _register(Rule(id, severity, looks_for, mend, on_recipe=check))
        return check

    return register


def tree_rule(id: str, severity: Severity, looks_for: str, mend: str) -> Callable[[TreeCheck], TreeCheck]:
    """Register a function that looks at a whole tree and yields files, lines and messages."""

    def register(check: TreeCheck) -> TreeCheck:
        _register(Rule(id, severity, looks_for, mend, on_tree=check))
        return check

    return register


def expected(recipe: Recipe) -> Variant | None:
    """The variant that a recipe's name promises, if the recipe can be read."""
    return recipe.variant if recipe.is_torch else None
