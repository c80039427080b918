"""The audit of a tree: every rule on every recipe, evaluated with Nix if it is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON, Build, Release
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.variants.matrix import ParsedName, matrix_of
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import UsageError
from torchtailor.nix.evaluate import Failed, evaluate
from torchtailor.nix.identify import TreeRelease, identify
from torchtailor.nix.nix import has_nix
from torchtailor.nix.pins import load_pins
from torchtailor.nix.recipe import Recipe, RecipeName
from torchtailor.nix.rules import RULES, AuditContext, Severity
from torchtailor.nix.tree import RecipeTree, find_trees


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One problem: which rule, where, what, and how to fix it."""

    rule: str
    severity: Severity
    file: str
    line: int
    message: str
    fix: str


@dataclass(frozen=True)
class AuditReport:
    """The audit of one tree."""

    root: Path
    release: str
    recipes: int
    evaluated: int  # recipes that Nix was run on
    findings: tuple[AuditFinding, ...]
    package: str = ""

    @property
    def errors(self) -> int:
        return self._count(Severity.ERROR)

    @property
    def warnings(self) -> int:
        return self._count(Severity.WARNING)

    @property
    def notes(self) -> int:
        return self._count(Severity.NOTE)

    def _count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def passed(self, *, strict: bool = False) -> bool:
        return not (self.errors or (strict and self.warnings))


class AuditedTree(Struct):
    """The audit of one tree."""

    root: Path
    release: Annotated[str, Meta(description="empty if it is not certain")]
    package: Annotated[str, Meta(description="of a folder that is no tree of recipes but nixpkgs' own torch")]
    recipes: int
    evaluated: Annotated[int, Meta(description="recipes that Nix was run on; the others were only read")]
    errors: int
    warnings: int
    notes: int
    findings: tuple[AuditFinding, ...]


class AuditDocument(Struct):
    """The audit of all trees at a folder."""

    passed: bool
    trees: tuple[AuditedTree, ...]


def audit(
    catalog: Catalog,
    root: Path,
    *,
    release: str | None = None,
    use_nix: bool | None = None,
    ignore: Sequence[str] = (),
) -> tuple[AuditReport, ...]:
    """Audit every tree at a folder; `use_nix` defaults to whether Nix is installed."""
    unknown = [rule for rule in ignore if rule not in RULES]
    if unknown:
        raise UsageError(f"There is no rule {unknown[0]!r}.", "`torchtailor recipes rules` lists the rules.")
    with_nix = has_nix() if use_nix is None else use_nix
    reports = [audit_tree(catalog, tree, release=release, with_nix=with_nix) for tree in find_trees(root)]
    return tuple(
        replace(report, findings=tuple(finding for finding in report.findings if finding.rule not in ignore))
        for report in reports
    )


def audit_tree(catalog: Catalog, tree: RecipeTree, *, release: str | None = None, with_nix: bool) -> AuditReport:
    context = open_tree(catalog, tree, release=release, with_nix=with_nix)
    context.require_recipes()
    tried = (recipe.evaluation for recipe in context.recipes)
    evaluated = sum(not item.unknown if isinstance(item, Failed) else item is not None for item in tried)
    release = context.release.recipe_name if context.identified.certain else ""
    return AuditReport(tree.root, release, len(context.recipes), evaluated, audit_context(context), context.package)


def audit_context(context: AuditContext) -> tuple[AuditFinding, ...]:
    """The findings of every rule, in the order of files and lines."""
    findings = []
    for rule in RULES.values():
        found: list[tuple[Severity, Path, int, str]] = []
        if rule.on_tree:
            found += [(rule.severity, *where) for where in rule.on_tree(context)]
        if rule.on_recipe:
            for recipe in (*context.recipes, *context.builders):
                places = list(rule.on_recipe(recipe, context))
                noted = bool(places and rule.note_if and rule.note_if(recipe, context))
                severity = Severity.NOTE if noted else rule.severity
                found += [(severity, recipe.path, line, message) for line, message in places]
        for severity, path, line, message in found:
            findings.append(AuditFinding(rule.id, severity, context.tree.shown(path), line, message, rule.fix))
    return tuple(sorted(set(findings), key=lambda item: (item.file, item.line, item.rule, item.message)))


def open_tree(catalog: Catalog, tree: RecipeTree, *, release: str | None = None, with_nix: bool) -> AuditContext:
    """Read a tree's recipes, match them with the matrix and, with Nix, evaluate them."""
    pins = load_pins(tree.flox)
    recipes = _with_builders(Recipe.read(name, path) for name, path in tree.recipes.items())
    found = TreeRelease(catalog.release(release)) if release else identify(catalog, pins, tree, recipes)
    chosen = found.release
    recipes = [replace(recipe, variant=_named_variant(catalog, chosen, recipe.recipe_name)) for recipe in recipes]
    context = AuditContext(catalog, matrix_of(catalog), pins, tree, found, tuple(recipes))
    if with_nix:
        judged = {
            recipe.path: _system(recipe)
            for recipe in recipes
            if recipe.readable and recipe.is_recipe and context.knows_pins(recipe)
        }
        evaluations = evaluate(judged, pins, without_pin=context.pin.rev)
        recipes = [replace(recipe, evaluation=evaluations.get(recipe.path)) for recipe in recipes]
        context = replace(context, recipes=tuple(recipes))
    return context


def _with_builders(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Recipes with the file beside them that they only call, which is read once."""
    builders: dict[Path, Recipe] = {}
    found = []
    for recipe in recipes:
        path = recipe.called
        if path and path not in builders:
            builders[path] = replace(Recipe.read(path.stem, path), is_builder=True)
        found.append(replace(recipe, builder=builders[path]) if path else recipe)
    return found


def _named_variant(catalog: Catalog, release: Release, name: RecipeName | None) -> Variant | None:
    """The variant that a file name stands for, even if the matrix lacks it or it is impossible."""
    if name is None or name.parsed.isa not in catalog.isas:
        return None
    gpu = catalog.gpus.get(name.parsed.gpu) if name.parsed.gpu else None
    build = _build(catalog, release, name.parsed, gpu)
    if build is None:
        return None
    return Variant(release, build, gpu, catalog.isas[name.parsed.isa], name.parsed.python or DEFAULT_PYTHON)


def _build(catalog: Catalog, release: Release, parsed: ParsedName, gpu: Gpu | None) -> Build | None:
    """The release's build; for a CUDA version that the release lacks, an otherwise empty one."""
    if parsed.gpu is None:
        return release.cpu_build
    if gpu is None or parsed.cuda is None:
        return None
    cuda = Dotted(parsed.cuda)
    listed = next((build for build in release.cuda_builds if build.cuda == cuda), None)
    if listed or cuda not in catalog.toolkits:
        return listed
    return Build(cuda=cuda, wheels=False, rows=())


def _system(recipe: Recipe) -> str:
    if recipe.variant:
        return recipe.variant.platform
    return "aarch64-linux" if "-arm" in recipe.name or recipe.name.endswith("-13_0") else "x86_64-linux"
