"""Migrates a hand-written tree to the canonical recipes, with a report on every recipe."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.core.disk import write_output
from torchtailor.core.errors import UsageError
from torchtailor.nix.audit import AuditFinding, audit_context, open_tree
from torchtailor.nix.blueprint import Blueprint
from torchtailor.nix.nix import has_nix
from torchtailor.nix.nixlibrary import library_files, library_from
from torchtailor.nix.own import own_parts
from torchtailor.nix.pins import KEPT_NAME, KeptRow, kept_text
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.render import environment_files, render, rerender
from torchtailor.nix.rules import AuditContext, Severity
from torchtailor.nix.rules.names import fits_isa
from torchtailor.nix.tree import MARKDOWN, PKGS, FileOrigin, RecipeTree, find_trees, stamp
from torchtailor.nix.write import recipe_variants

REPORT_NAME = "MIGRATION.md"
_VERSION = re.compile(r"\bPyTorch v?(\d+\.\d+\.\d+)")


class MigrationStatus(Enum):
    """What a migration does with a recipe."""

    KEPT = "kept"  # already canonical, or not a recipe of the matrix
    REWRITTEN = "rewritten"
    CREATED = "created"
    DELETED = "deleted"
    PRUNABLE = "prunable"  # redundant or impossible: deleted with --prune
    UNLISTED = "unlisted"  # not in the release's matrix: deleted with --prune-unlisted


@dataclass(frozen=True, slots=True)
class MigratedRecipe:
    """One recipe: what happens to it, why, and its text before and after."""

    name: str
    path: Path
    status: MigrationStatus
    reason: str
    before: str = ""
    after: str = ""

    def diff(self) -> str:
        old = self.before.splitlines(keepends=True)
        new = self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old, new, f"a/{self.path.name}", f"b/{self.path.name}"))


@dataclass(frozen=True, slots=True)
class MigratedRow:
    """One recipe: what happens to it, why, and what is kept of it."""

    name: str
    status: MigrationStatus
    reason: str
    exports: Mapping[str, str]
    not_carried: Annotated[tuple[str, ...], Meta(description="what only its author can place")]


@dataclass(frozen=True)
class Migration:
    """What migrating a tree changes."""

    tree: RecipeTree
    release: str
    recipes: tuple[MigratedRecipe, ...]
    kept: Mapping[str, KeptRow]
    beside: Mapping[Path, str]

    def of(self, *statuses: MigrationStatus) -> tuple[MigratedRecipe, ...]:
        return tuple(recipe for recipe in self.recipes if recipe.status in statuses)

    @property
    def total(self) -> int:
        """Recipes in the tree afterwards."""
        return len(self.recipes) - len(self.of(MigrationStatus.DELETED))

    @property
    def needed(self) -> bool:
        return bool(self.of(MigrationStatus.REWRITTEN, MigrationStatus.CREATED, MigrationStatus.DELETED))

    @property
    def root(self) -> Path:
        return self.tree.root

    @property
    def rows(self) -> tuple[MigratedRow, ...]:
        """Every recipe with what was kept of it."""
        return tuple(
            MigratedRow(recipe.name, recipe.status, recipe.reason, kept.exports, kept.not_carried)
            for recipe in self.recipes
            for kept in [self.kept.get(recipe.name, KeptRow())]
        )

    def apply(self) -> None:
        """Write first, delete last; a second run finds nothing to do."""
        flox = self.tree.flox
        if self.kept:
            write_output(flox / KEPT_NAME, kept_text(self.kept).encode())
        for recipe in self.of(MigrationStatus.REWRITTEN, MigrationStatus.CREATED):
            write_output(recipe.path, recipe.after.encode())
        for path, text in self.beside.items():
            write_output(path, text.encode())
        for recipe in self.of(MigrationStatus.DELETED):
            recipe.path.unlink()
            if recipe.path.name == "default.nix" and not any(recipe.path.parent.iterdir()):
                recipe.path.parent.rmdir()
        if self.needed:
            write_output(flox / REPORT_NAME, self.report().encode())

    def report(self) -> str:
        """MIGRATION.md: counts, then every recipe with its reason."""
        lines = [f"# Migration to the canonical recipes of release {self.release}", ""]
        lines += ["| Status | Recipes |", "|---|---:|"]
        lines += [f"| {status.value} | {len(self.of(status))} |" for status in MigrationStatus if self.of(status)]
        lines += [f"| **in the tree now** | **{self.total}** |", ""]
        for status in MigrationStatus:
            if recipes := self.of(status):
                lines += [f"## {status.value.capitalize()} ({len(recipes)})", ""]
                lines += [f"- `{recipe.name}`: {recipe.reason}" for recipe in recipes]
                lines.append("")
        if lost := {name: row.not_carried for name, row in self.kept.items() if row.not_carried}:
            lines += ["## Not carried over", "", f"Also in `{KEPT_NAME}`; add what you need by hand.", ""]
            lines += [f"- `{name}`: {'; '.join(row)}" for name, row in sorted(lost.items())]
            lines.append("")
        if exports := {name: row.exports for name, row in self.kept.items() if row.exports}:
            lines += ["## Exports carried over", ""]
            lines += [
                f"- `{name}`: {', '.join(f'`{key}={value}`' for key, value in sorted(row.items()))}"
                for name, row in sorted(exports.items())
            ]
            lines.append("")
        return stamp("\n".join(lines), "What `torchtailor recipes migrate` did.", MARKDOWN)


class MigratedTree(Struct):
    """What migrating a tree changes."""

    root: Path
    release: str
    total: Annotated[int, Meta(description="recipes in the tree afterwards")]
    rows: tuple[MigratedRow, ...] = field(name="recipes")


class MigrationDocument(Struct):
    """What migrating all trees at a folder changes."""

    trees: tuple[MigratedTree, ...]


def migrate_recipes(
    catalog: Catalog,
    root: Path,
    *,
    release: str | None = None,
    prune: bool = False,
    prune_unlisted: bool = False,
    replace_pin: bool = False,
    dry_run: bool = False,
) -> tuple[Migration, ...]:
    """Migrate every tree at a folder; with `dry_run`, only plan it."""
    options = {
        "prune": prune,
        "prune_unlisted": prune_unlisted,
        "replace_pin": replace_pin,
        "with_nix": has_nix(),
    }
    migrations = tuple(plan_migration(catalog, tree, release=release, **options) for tree in find_trees(root))
    for migration in () if dry_run else migrations:
        migration.apply()
    return migrations


def plan_migration(
    catalog: Catalog,
    tree: RecipeTree,
    *,
    release: str | None = None,
    prune: bool = False,
    prune_unlisted: bool = False,
    replace_pin: bool = False,
    with_nix: bool = False,
) -> Migration:
    """What migrating one tree changes."""
    context = open_tree(catalog, tree, release=release, with_nix=with_nix)
    context.require_all_read()
    context.identified.require(tree)
    findings: dict[str, list[AuditFinding]] = {}
    for finding in audit_context(context):
        findings.setdefault(finding.file, []).append(finding)
    if context.from_wheels:
        raise UsageError(
            f"{tree.root} holds recipes from wheels, which are not migrated.",
            "Run `torchtailor recipes write` instead.",
        )
    wanted = recipe_variants(catalog, context.release.recipe_name, pythons=context.pythons or (DEFAULT_PYTHON,))
    names = {variant.name: variant for variant in wanted}
    if not replace_pin:
        _refuse_unknown_pin(context, names)
    kept = dict(context.pins.kept)
    for recipe in context.recipes:
        if recipe.name in names and recipe.origin is not FileOrigin.GENERATED and recipe.readable:
            row = _worth_keeping(recipe, context, findings.get(tree.shown(recipe.path), []))
            if row != KeptRow():
                kept[recipe.name] = row
    context = replace(context, pins=replace(context.pins, kept=kept))
    migrated = [
        _migrated(
            recipe,
            context,
            names,
            [item for item in findings.get(tree.shown(recipe.path), []) if item.severity is Severity.ERROR],
            prune=prune,
            prune_unlisted=prune_unlisted,
        )
        for recipe in context.recipes
    ]
    for name, variant in names.items():
        if name not in context.names:
            path = tree.pkgs / f"{name}.nix"
            text = render(Blueprint(catalog, context.pins, variant), library_from(path))
            reason = f"{variant.short_name} was missing"
            migrated.append(MigratedRecipe(name, path, MigrationStatus.CREATED, reason, after=text))
    beside = {tree.flox / name: text for name, text in library_files(catalog, context.pins).items()}
    beside |= {
        tree.flox / name: text
        for name, text in environment_files(catalog, context.pins, wanted).items()
        if tree.pkgs.name == PKGS and not (tree.flox / name).exists()  # they name the recipes in that folder
    }
    return Migration(tree, context.release.recipe_name, tuple(migrated), kept, beside)


def _refuse_unknown_pin(context: AuditContext, names: Mapping[str, object]) -> None:
    """A nixpkgs that the catalog does not know was chosen by someone, and is not replaced without being asked."""
    unknown = [
        pin.rev
        for recipe in context.recipes
        if recipe.name in names and recipe.origin is FileOrigin.FOREIGN
        for pin in recipe.pins
        if context.pins.find_nixpkgs(pin.rev) is None
    ]
    if unknown:
        raise UsageError(
            f"{context.tree.root}: {len(unknown)} recipes pin nixpkgs {', '.join(sorted(set(unknown)))}, which the "
            f"catalog does not know; the migrated ones would pin {context.pin.rev}.",
            "Allow it with --replace-pin, or keep these recipes as they are.",
        )


def _migrated(
    recipe: Recipe,
    context: AuditContext,
    names: Mapping[str, object],
    problems: list[AuditFinding],
    *,
    prune: bool,
    prune_unlisted: bool,
) -> MigratedRecipe:
    def as_(status: MigrationStatus, reason: str, after: str = "") -> MigratedRecipe:
        return MigratedRecipe(recipe.name, recipe.path, status, reason, recipe.text, after)

    if not recipe.readable and recipe.origin is not FileOrigin.GENERATED:
        return as_(MigrationStatus.KEPT, "not valid Nix")
    if recipe.name in names or (recipe.name in context.spark and recipe.origin is not FileOrigin.FOREIGN):
        text = rerender(context.catalog, context.pins, recipe)
        assert text is not None
        if text == recipe.text:
            return as_(MigrationStatus.KEPT, "already canonical")
        return as_(MigrationStatus.REWRITTEN, _rules(problems) or "correct, but not in the canonical form", text)
    if recipe.recipe_name is None:
        return as_(MigrationStatus.KEPT, "not a recipe of the matrix")
    if recipe.is_sibling and recipe.recipe_name.base in context.listed:
        package = recipe.recipe_name.package
        return as_(MigrationStatus.KEPT, f"`torchtailor recipes write --with {package}` writes the canonical one")
    for rule in ("variant-impossible", "variant-redundant"):
        if found := next((problem for problem in problems if problem.rule == rule), None):
            return as_(MigrationStatus.DELETED if prune else MigrationStatus.PRUNABLE, f"{rule}: {found.message}")
    reason = f"release {context.release.recipe_name} does not list it" + (f"; {_rules(problems)}" if problems else "")
    return as_(MigrationStatus.DELETED if prune_unlisted else MigrationStatus.UNLISTED, reason)


def _rules(problems: list[AuditFinding]) -> str:
    """The rules that a recipe broke."""
    return ", ".join(dict.fromkeys(problem.rule for problem in problems))


def _worth_keeping(recipe: Recipe, context: AuditContext, problems: list[AuditFinding]) -> KeptRow:
    """What is unique to a hand-written recipe: correct descriptions, flags and exports, and a list of the rest."""
    wrong = {problem.line: problem.rule for problem in problems}
    source, variant = recipe.source, recipe.variant
    assert variant is not None
    standard = Blueprint(context.catalog, replace(context.pins, kept={}), variant)
    lost: list[str] = []

    def lines(name: str) -> tuple[str, ...]:
        binding = source.last(name)
        found = source.lines(binding.node) if binding else ()
        texts = tuple(line.text.strip() for line in found)
        why = next((wrong[line.number] for line in found if line.number in wrong), "")
        why = why or ("it is computed" if any("${" in text for text in texts) else "")
        others = {match[1] for text in texts for match in _VERSION.finditer(text)} - {standard.version}
        why = why or (f"it mentions PyTorch {', '.join(sorted(others))}" if others else "")
        if why and found:
            lost.append(f"line {found[0].number}: {name} ({why})")
            return ()
        return texts

    description = " ".join(lines("description"))
    long_description = lines("longDescription")
    flags = tuple(recipe.cpu_flags.text.split()) if recipe.cpu_flags else ()
    if not fits_isa(variant.isa, flags) or flags == variant.isa.compile_flags:
        flags = ()
    lost += [
        f"line {pin.line}: nixpkgs {pin.rev}, replaced by {standard.pin.rev}"
        for pin in recipe.pins
        if not standard.pin.rev.startswith(pin.rev)
    ]
    own = own_parts(recipe, {name: value for row in standard.without for name, value in row.exports.items()})
    return KeptRow(
        description="" if description == standard.description else description,
        long_description=() if long_description == standard.long_description else long_description,
        cpu_flags=flags,
        exports=own.exports,
        not_carried=(*lost, *own.other),
    )
