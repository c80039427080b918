"""Migrates a hand-written tree to the canonical recipes, with a report on every recipe."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.core.disk import write_output
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.format import counted
from torchtailor.nix.audit import AuditFinding, audit_context, open_tree
from torchtailor.nix.blueprint import Blueprint
from torchtailor.nix.nix import has_nix
from torchtailor.nix.nixlibrary import library_files, library_from
from torchtailor.nix.own import own_parts
from torchtailor.nix.pins import KEPT_NAME, KeptRow, kept_text
from torchtailor.nix.recipe import ARCHIVE, PinUse, Recipe
from torchtailor.nix.render import environment_files, render, rerender
from torchtailor.nix.rules import AuditContext, Severity
from torchtailor.nix.rules.names import fits_isa
from torchtailor.nix.tree import MARKDOWN, PKGS, FileOrigin, RecipeTree, find_trees, stamp
from torchtailor.nix.write import recipe_variants, tree_variants

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
    nixpkgs: Annotated[str, Meta(description="its own revision, which the catalog does not know, so was not checked")]
    exports: Mapping[str, str]
    comments: tuple[str, ...]
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
    def pins(self) -> Mapping[str, int]:
        """How many recipes of the tree pin which nixpkgs afterwards."""
        gone = self.of(MigrationStatus.DELETED)
        found = (ARCHIVE.search(recipe.after or recipe.before) for recipe in self.recipes if recipe not in gone)
        return Counter(match[1] for match in found if match)

    @property
    def pins_text(self) -> tuple[str, ...]:
        """What is to be known of these."""
        kept = Counter(row.nixpkgs for row in self.kept.values() if row.nixpkgs)
        lines = [
            f"{counted(count, 'recipe')} keep nixpkgs {rev}, which the catalog does not know: they were not evaluated "
            "with it. --replace-pin replaces it."
            for rev, count in kept.items()
        ]
        if len(self.pins) > 1:
            listed = ", ".join(f"{rev[:12]} ({counted(count, 'recipe')})" for rev, count in self.pins.items())
            lines.append(f"The tree pins several nixpkgs: {listed}.")
        return tuple(lines)

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
            MigratedRow(
                recipe.name, recipe.status, recipe.reason, kept.nixpkgs, kept.exports, kept.comments, kept.not_carried
            )
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
        lines += [line for text in self.pins_text for line in (text, "")]
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
    context.require_recipes()
    context.require_all_read()
    if not any(recipe.recipe_name for recipe in context.recipes):
        raise NoMatchError(
            f"{tree.root} holds no recipe that is named as a variant, so there is nothing to migrate.",
            "`torchtailor recipes write FOLDER` writes recipes.",
        )
    context.identified.require(tree)
    findings: dict[str, list[AuditFinding]] = {}
    for finding in audit_context(context):
        findings.setdefault(finding.file, []).append(finding)
    if context.from_wheels:
        raise UsageError(
            f"{tree.root} holds recipes from wheels, which are not migrated.",
            "Run `torchtailor recipes write` instead.",
        )
    of_release = context.release.recipe_name
    selected = {variant.name for variant in tree_variants(catalog, of_release, tree, context.pythons)}
    every = recipe_variants(catalog, of_release, pythons=context.pythons or (DEFAULT_PYTHON,))
    wanted = tuple(variant for variant in every if variant.name in context.names or variant.name in selected)
    names = {variant.name: variant for variant in wanted}
    before = context.pins.kept
    kept = dict(before)
    if replace_pin:
        kept = {name: _without_pin(row, context.pin.rev) for name, row in kept.items()}
    own_pins = {} if replace_pin else _own_pins(context, names)
    for recipe in context.recipes:
        if recipe.name in names and recipe.origin is not FileOrigin.GENERATED and recipe.readable:
            pin = own_pins.get(recipe.name)
            row = _worth_keeping(recipe, context, findings.get(tree.shown(recipe.path), []), pin)
            if row != KeptRow():
                kept[recipe.name] = row
    if len({pin.rev for pin in own_pins.values()}) == 1:  # the missing ones join the others
        only = next(iter(own_pins.values()))
        kept |= {name: _with_pin(kept.get(name, KeptRow()), only) for name in names if name not in context.names}
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
    has_torch = any(recipe.recipe_name and not recipe.is_sibling for recipe in context.recipes)
    for name, variant in names.items() if has_torch else ():
        if name not in context.names:
            path = tree.pkgs / f"{name}.nix"
            text = render(Blueprint(catalog, context.pins, variant), library_from(path))
            reason = f"{variant.short_name} was missing"
            migrated.append(MigratedRecipe(name, path, MigrationStatus.CREATED, reason, after=text))
    repinned = any(row.nixpkgs for row in context.pins.kept.values()) != any(row.nixpkgs for row in before.values())
    beside = {tree.flox / name: text for name, text in library_files(catalog, context.pins).items()}
    beside |= {
        tree.flox / name: text
        for name, text in environment_files(catalog, context.pins, wanted).items()
        # They name the recipes in that folder; the one that pins nixpkgs follows them.
        if tree.pkgs.name == PKGS and (not (tree.flox / name).exists() or (repinned and name == "default.nix"))
    }
    return Migration(tree, context.release.recipe_name, tuple(migrated), kept, beside)


def _own_pins(context: AuditContext, names: Mapping[str, object]) -> Mapping[str, PinUse]:
    """By recipe, a nixpkgs that the catalog does not know: someone chose it, so it stays unless asked otherwise."""
    return {
        recipe.name: recipe.all_pins[0]
        for recipe in context.recipes
        if recipe.name in names and recipe.origin is not FileOrigin.GENERATED and recipe.all_pins
        if context.pins.find_nixpkgs(recipe.all_pins[0].rev) is None
    }


def _without_pin(row: KeptRow, rev: str) -> KeptRow:
    """A kept row whose own pin was replaced after all."""
    if not row.nixpkgs:
        return row
    lost = (*row.not_carried, f"nixpkgs {row.nixpkgs}, replaced by {rev}")
    return msgspec.structs.replace(row, nixpkgs="", nixpkgs_sha256="", not_carried=lost)


def _with_pin(row: KeptRow, pin: PinUse) -> KeptRow:
    given = "" if pin.hash == pin.rev else pin.hash  # a Git revision needs none, the archive that is written does
    return msgspec.structs.replace(row, nixpkgs=pin.rev, nixpkgs_sha256=given)


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
        right = "correct, but not in the canonical form"
        if recipe.opaque and recipe.builder:
            right = f"it calls {recipe.builder.path.name}, which was not evaluated"
        reason = _rules(problems) or right
        return as_(MigrationStatus.REWRITTEN, reason, text)
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


def _worth_keeping(recipe: Recipe, context: AuditContext, problems: list[AuditFinding], pin: PinUse | None) -> KeptRow:
    """What is unique to a hand-written recipe: correct descriptions, comments, flags and exports, its own pin, and a
    list of the rest."""
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
    rev = pin.rev if pin else standard.pin.rev
    lost += [
        f"line {other.line}: nixpkgs {other.rev}, replaced by {rev}"
        for other in recipe.all_pins
        if not rev.startswith(other.rev)
    ]
    if recipe.builder:
        lost.append(f"what {recipe.builder.path.name} does, which it calls")
    if not recipe.all_pins:
        where = f"not named in {recipe.builder.path.name}" if recipe.builder else "not pinned to a revision"
        lost.append(f"nixpkgs: {where}, now {rev}")
    foreign = recipe.origin is FileOrigin.FOREIGN
    comments = [] if foreign else list(context.pins.kept.get(recipe.name, KeptRow()).comments)
    claims = {line: rule for line, rule in wrong.items() if rule.startswith(("claim-", "driver-"))}
    for line in recipe.source.head_comments if foreign else ():
        if line.number in claims:
            lost.append(f"line {line.number}: the comment {line.text!r} ({claims[line.number]})")
        else:
            comments.append(line.text)
    own = own_parts(recipe, {name: value for row in standard.without for name, value in row.exports.items()})
    row = KeptRow(
        description="" if description == standard.description else description,
        long_description=() if long_description == standard.long_description else long_description,
        cpu_flags=flags,
        exports=own.exports,
        comments=tuple(comments),
        not_carried=(*lost, *own.other),
    )
    return _with_pin(row, pin) if pin else row
