"""What a rule of the audit is, what it may look at, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Release
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants.matrix import Matrix
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NoMatchError
from torchtailor.nix.identify import TreeRelease
from torchtailor.nix.pins import NixpkgsRow, Pins
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.render import RecipeOrigin, spark_names
from torchtailor.nix.tree import RecipeTree
from torchtailor.nix.write import written_origin


class Severity(Enum):
    """An error fails the audit, a warning only a strict one, a note never."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class AuditContext:
    """Everything that a rule may look at."""

    catalog: Catalog
    matrix: Matrix
    pins: Pins
    tree: RecipeTree
    identified: TreeRelease
    recipes: tuple[Recipe, ...]

    @property
    def release(self) -> Release:
        return self.identified.release

    @cached_property
    def pin(self) -> NixpkgsRow:
        if self.from_wheels or self.release.nixpkgs is None:
            return self.pins.newest
        return self.pins.nixpkgs(self.release.nixpkgs)

    @cached_property
    def builders(self) -> tuple[Recipe, ...]:
        """The files that recipes only call."""
        return tuple({recipe.builder.path: recipe.builder for recipe in self.recipes if recipe.builder}.values())

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(recipe.name for recipe in self.recipes)

    @cached_property
    def listed(self) -> frozenset[str]:
        """The names of the release's matrix, for every Python."""
        return frozenset(variant.name for variant in self.matrix.variants(self.release.recipe_name, "all"))

    @cached_property
    def from_wheels(self) -> bool:
        """Whether the tree was written from official wheels."""
        return written_origin(self.tree) is RecipeOrigin.WHEELS

    @cached_property
    def spark(self) -> frozenset[str]:
        """What `recipes write --spark` adds to a tree of this release."""
        return spark_names(self.pins) if self.pins.file.spark.release == self.release.recipe_name else frozenset()

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        """The Python versions that this tree has recipes for."""
        found = {r.recipe_name.parsed.python for r in self.recipes if r.recipe_name and r.recipe_name.parsed.python}
        return tuple(sorted(found & set(self.release.pythons), key=python_key))

    @property
    def package(self) -> str:
        """The package of torch that this folder is, as nixpkgs has one: `torch 2.9.1`; empty for recipes."""
        own = next((recipe for recipe in self.recipes if recipe.is_package), None)
        version = own.source.last("version") if own else None
        value = own.source.value(version.node) if own and version else None
        return "" if own is None else f"torch {value}" if isinstance(value, str) else "torch"

    def require_recipes(self) -> None:
        """Refuse a folder of Nix files that have nothing to do with PyTorch."""
        if self.package or any(recipe.concerns_torch or recipe.name in self.spark for recipe in self.recipes):
            return
        root = self.tree.root
        torch = root / "pkgs" / "development" / "python-modules" / "torch"
        raise NoMatchError(
            f"{root} {'is nixpkgs itself' if torch.is_dir() else 'holds Nix files'}, but no recipes of PyTorch: "
            "none is named as a variant, overrides torch or fetches a nixpkgs.",
            f"Its package of torch can be checked: {torch}."
            if torch.is_dir()
            else "Give a folder whose recipes are of PyTorch, such as pytorch-python313-cuda13_0-sm90-avx512.nix.",
        )

    def require_all_read(self) -> None:
        """Refuse to change a tree of which a file cannot be read."""
        if unread := next((recipe.unread for recipe in self.recipes if recipe.unread), None):
            raise unread

    def owns(self, recipe: Recipe) -> bool:
        """Whether the release is certain and its recipes include the recipe's CUDA version."""
        build = recipe.variant.build if recipe.variant else None
        return self.identified.certain and (build is None or (build in self.release.builds and build.recipes))

    def knows_pins(self, recipe: Recipe) -> bool:
        """Whether it is known what the recipe's nixpkgs contains; without a pin, that of the release is assumed."""
        return all(self.pins.find_nixpkgs(pin.rev) for pin in recipe.all_pins)

    def pin_of(self, recipe: Recipe) -> NixpkgsRow | None:
        """The facts of the recipe's own pin, else of the release's; None if its pin is unknown."""
        if not recipe.all_pins:
            return self.pin
        return self.pins.find_nixpkgs(recipe.all_pins[0].rev)


NoteCheck = Callable[[Recipe, AuditContext], bool]
RecipeCheck = Callable[[Recipe, AuditContext], Iterator[tuple[int, str]]]
VariantCheck = Callable[[Recipe, Variant, AuditContext], Iterator[tuple[int, str]]]
TreeCheck = Callable[[AuditContext], Iterator[tuple[Path, int, str]]]


@dataclass(frozen=True)
class AuditRule:
    """One kind of problem: what it looks for, how to fix it, and the function that finds it."""

    id: str
    severity: Severity
    looks_for: str
    fix: str
    on_recipe: RecipeCheck | None = None
    note_if: NoteCheck | None = None  # where a recipe's finding is only a note
    on_tree: TreeCheck | None = None


RULES: dict[str, AuditRule] = {}


def _register(rule: AuditRule) -> None:
    assert rule.id not in RULES, rule.id
    RULES[rule.id] = rule


def recipe_rule(id: str, severity: Severity, looks_for: str, fix: str) -> Callable[[RecipeCheck], RecipeCheck]:
    """Register a check of one recipe that yields lines and messages."""

    def register(check: RecipeCheck) -> RecipeCheck:
        _register(AuditRule(id, severity, looks_for, fix, on_recipe=check))
        return check

    return register


def variant_rule(
    id: str, severity: Severity, looks_for: str, fix: str, *, note_if: NoteCheck | None = None
) -> Callable[[VariantCheck], VariantCheck]:
    """Register a check of readable recipes of PyTorch whose file name is a variant's."""

    def register(check: VariantCheck) -> VariantCheck:
        def on_recipe(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
            if recipe.is_torch and recipe.variant and not recipe.row:  # the library does the rest
                yield from check(recipe, recipe.variant, context)

        _register(AuditRule(id, severity, looks_for, fix, on_recipe=on_recipe, note_if=note_if))
        return check

    return register


def tree_rule(id: str, severity: Severity, looks_for: str, fix: str) -> Callable[[TreeCheck], TreeCheck]:
    """Register a check of a whole tree that yields files, lines and messages."""

    def register(check: TreeCheck) -> TreeCheck:
        _register(AuditRule(id, severity, looks_for, fix, on_tree=check))
        return check

    return register
