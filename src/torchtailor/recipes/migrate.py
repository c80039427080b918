"""Takes a hand-made tree to the canonical form, and says what became of every recipe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.disk import write_output
from torchtailor.recipes.audit import Finding, audit_context, open_tree
from torchtailor.recipes.blueprint import Blueprint
from torchtailor.recipes.header import MARKDOWN, Origin, stamp
from torchtailor.recipes.pins import KEPT_NAME, KeptRow, kept_text
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.render import environment_files, render
from torchtailor.recipes.rerender import rerender
from torchtailor.recipes.rules import Context, Severity
from torchtailor.recipes.rules.names import fits_isa
from torchtailor.recipes.tree import Tree
from torchtailor.recipes.write import recipe_variants

REPORT_NAME = "MIGRATION.md"


class Fate(Enum):
    """What becomes of a recipe."""

    KEPT = "kept"  # canonical already, or none of our business
    REWRITTEN = "rewritten"
    CREATED = "created"
    DELETED = "deleted"
    LEFT = "left"  # would be deleted with --prune


@dataclass(frozen=True, slots=True)
class Move:
    """One recipe's fate, why, and its texts."""

    name: str
    path: Path
    fate: Fate
    why: str
    before: str = ""
    after: str = ""

    def diff(self) -> str:
        old = self.before.splitlines(keepends=True)
        new = self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old, new, f"a/{self.path.name}", f"b/{self.path.name}"))


@dataclass(frozen=True)
class Migration:
    """What migrating a tree does."""

    tree: Tree
    release: str
    moves: tuple[Move, ...]
    kept: Mapping[str, KeptRow]
    beside: Mapping[Path, str]

    def of(self, fate: Fate) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if move.fate is fate)

    @property
    def total(self) -> int:
        """Recipes in the tree afterwards."""
        return sum(move.fate is not Fate.DELETED for move in self.moves)

    @property
    def needed(self) -> bool:
        return any(move.fate in (Fate.REWRITTEN, Fate.CREATED, Fate.DELETED) for move in self.moves)

    def apply(self) -> None:
        """Write first, delete last; a second run finds nothing to do."""
        flox = self.tree.flox
        if self.kept:
            write_output(flox / KEPT_NAME, kept_text(self.kept).encode())
        for move in (*self.of(Fate.REWRITTEN), *self.of(Fate.CREATED)):
            write_output(move.path, move.after.encode())
        for path, text in self.beside.items():
            write_output(path, text.encode())
        for move in self.of(Fate.DELETED):
            move.path.unlink()
            if move.path.name == "default.nix" and not any(move.path.parent.iterdir()):
                move.path.parent.rmdir()
        if self.needed:
            write_output(flox / REPORT_NAME, self.report().encode())

    def report(self) -> str:
        """Kept, rewritten, created, deleted, with counts and reasons."""
        lines = [f"# Migration to the canonical recipes of release {self.release}", ""]
        lines += ["| What | Recipes |", "|---|---:|"]
        lines += [f"| {fate.value} | {len(self.of(fate))} |" for fate in Fate if self.of(fate)]
        lines += [f"| **in the tree now** | **{self.total}** |", ""]
        for fate in Fate:
            moves = self.of(fate)
            if moves:
                lines += [f"## {fate.value.capitalize()} ({len(moves)})", ""]
                lines += [f"- `{move.name}`: {move.why}" for move in moves]
                lines.append("")
        return stamp("\n".join(lines), "What `torchtailor recipes migrate` did.", MARKDOWN)


def plan_migration(
    catalog: Catalog, tree: Tree, *, release: str | None = None, prune: bool = False, by_nix: bool = False
) -> Migration:
    """What would become of every recipe of a tree."""
    context = open_tree(catalog, tree, release=release, by_nix=by_nix)
    findings: dict[str, list[Finding]] = {}
    for finding in audit_context(context):
        if finding.severity is Severity.ERROR:
            findings.setdefault(finding.file, []).append(finding)
    wanted = recipe_variants(catalog, context.release.name, pythons=context.pythons or (DEFAULT_PYTHON,))
    names = {variant.name: variant for variant in wanted}
    kept = dict(context.pins.kept)
    for recipe in context.recipes:
        if recipe.name in names and recipe.origin is not Origin.GENERATED and recipe.readable:
            row = _worth_keeping(recipe, context, findings.get(tree.shown(recipe.path), []))
            if row != KeptRow():
                kept[recipe.name] = row
    context = replace(context, pins=replace(context.pins, kept=kept))
    moves = [_move(recipe, context, names, findings, prune=prune) for recipe in context.recipes]
    for name, variant in names.items():
        if name not in context.names:
            text = render(Blueprint(catalog, context.pins, variant))
            path = tree.pkgs / f"{name}.nix"
            moves.append(Move(name, path, Fate.CREATED, f"{variant.short_name} was missing", after=text))
    beside = {
        tree.flox / name: text
        for name, text in environment_files(catalog, context.pins, wanted).items()
        if not (tree.flox / name).exists()
    }
    return Migration(tree, context.release.name, tuple(moves), kept, beside)


def _move(
    recipe: Recipe,
    context: Context,
    names: Mapping[str, object],
    findings: Mapping[str, list[Finding]],
    *,
    prune: bool,
) -> Move:
    problems = findings.get(context.tree.shown(recipe.path), [])
    known = recipe.name in names or (recipe.name in context.spark and recipe.origin is not Origin.FOREIGN)
    if known:
        text = rerender(context.catalog, context.pins, recipe)
        assert text is not None
        if text == recipe.text:
            return Move(recipe.name, recipe.path, Fate.KEPT, "canonical already")
        why = _summary(problems) or "correct, but not in the canonical form"
        return Move(recipe.name, recipe.path, Fate.REWRITTEN, why, recipe.text, text)
    unwanted = _unwanted(problems, recipe, context)
    if not unwanted:
        return Move(recipe.name, recipe.path, Fate.KEPT, "not a recipe of the matrix: not touched")
    return Move(recipe.name, recipe.path, Fate.DELETED if prune else Fate.LEFT, unwanted, before=recipe.text)


def _unwanted(problems: list[Finding], recipe: Recipe, context: Context) -> str:
    """Why a recipe outside the matrix should go; empty when it should not."""
    if recipe.recipe_name is None:
        return ""
    for rule in ("variant-impossible", "variant-redundant", "foreign-pattern", "syntax"):
        for problem in problems:
            if problem.rule == rule:
                return f"{rule}: {problem.message}"
    return f"release {context.release.name} does not list it" + (f"; {_summary(problems)}" if problems else "")


def _summary(problems: list[Finding]) -> str:
    """The rules a recipe broke, briefly."""
    rules = list(dict.fromkeys(problem.rule for problem in problems))
    return ", ".join(rules)


def _worth_keeping(recipe: Recipe, context: Context, problems: list[Finding]) -> KeptRow:
    """What a hand-made recipe says of its own and says rightly: description, long description, flags."""
    wrong = {problem.line for problem in problems}
    source, variant = recipe.source, recipe.variant
    assert variant is not None
    standard = Blueprint(context.catalog, replace(context.pins, kept={}), variant)

    def lines(name: str) -> tuple[str, ...]:
        binding = source.last(name)
        found = source.lines(binding.node) if binding else ()
        if any(line.number in wrong for line in found) or any("${" in line.text for line in found):
            return ()
        return tuple(line.text.strip() for line in found)

    description = " ".join(lines("description"))
    long_description = lines("longDescription")
    flags = tuple(recipe.cpu_flags.text.split()) if recipe.cpu_flags else ()
    if not fits_isa(variant.isa, flags) or flags == variant.isa.compile_flags:
        flags = ()
    return KeptRow(
        description="" if description == standard.description else description,
        long_description=() if long_description == standard.long_description else long_description,
        cpu_flags=flags,
    )
