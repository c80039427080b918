"""Rules that compare a tree with the matrix: missing, redundant, impossible, unknown or outdated recipes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from torchtailor.core.trust import decode_toml
from torchtailor.nix.nixlibrary import library_files
from torchtailor.nix.recipe import SIBLINGS, TORCH, Recipe
from torchtailor.nix.render import rerender, sibling_name
from torchtailor.nix.rules.base import AuditContext, Severity, recipe_rule, tree_rule
from torchtailor.nix.tree import FileOrigin, origin, read_document
from torchtailor.nix.wheels import TOOL
from torchtailor.nix.write import tree_variants, written_selection, written_siblings

_ROW = re.compile(r"\[`([^`]+)`\]\(pkgs/")


@tree_rule(
    "release-unknown",
    Severity.WARNING,
    "recipes whose release is not certain, so that they are not compared with one",
    "Give the release with --release.",
)
def release_unknown(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    if not context.identified.certain and any(recipe.is_recipe for recipe in context.recipes) and not context.package:
        yield context.recipes[0].path, 1, f"the release of this tree is not certain: {context.identified.doubt}"


@tree_rule(
    "variant-missing",
    Severity.ERROR,
    "a variant of the release without a recipe",
    "`torchtailor recipes write DIR NAME` writes it.",
)
def variant_missing(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    if not context.identified.certain or context.from_wheels:  # an index may lack the wheels of a variant
        return
    selection = written_selection(context.tree)
    wanted = tree_variants(context.catalog, context.release.recipe_name, context.tree, context.pythons)
    missing = [variant for variant in wanted if variant.name not in context.names]
    for package in written_siblings(context.tree):
        for name in (sibling_name(package, variant) for variant in wanted):
            if name not in context.names:
                yield context.tree.pkgs / f"{name}.nix", 1, f"the tree is written with {package}, but lacks this recipe"
    if selection is None and not any(recipe.is_torch for recipe in context.recipes):
        return
    if selection is None and missing:  # not written by torchtailor: one remark, since it may be meant so
        names = ", ".join(variant.short_name for variant in missing[:6]) + (", ..." if len(missing) > 6 else "")
        yield (
            context.tree.pkgs,
            1,
            f"release {context.release.recipe_name} has {len(missing)} variants without a recipe in this tree: {names}",
        )
        return
    for variant in missing:
        yield (
            context.tree.pkgs / f"{variant.name}.nix",
            1,
            f"release {context.release.recipe_name} has this variant, the tree has no recipe for it",
        )


@recipe_rule(
    "variant-impossible",
    Severity.ERROR,
    "an impossible combination (x86_64 with SM110 or SM121, a GPU that the CUDA version does not support)",
    "Delete it: `torchtailor recipes migrate --prune`.",
)
def variant_impossible(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.variant:
        for reason in context.matrix.why_impossible(recipe.variant):
            yield 1, reason.text


@recipe_rule(
    "variant-redundant",
    Severity.ERROR,
    "a second recipe for the same variant (`-magma`)",
    "Delete it: `torchtailor recipes migrate --prune`.",
)
def variant_redundant(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    name = recipe.recipe_name
    if name and name.suffix and recipe.name not in context.spark:
        other = "is in this tree as well" if name.base in context.names else "is the canonical name"
        yield 1, f"the suffix -{name.suffix} is not canonical: {name.base} {other}"


@recipe_rule(
    "variant-unlisted",
    Severity.WARNING,
    "a possible variant that the release does not list",
    "Delete it, or add a row to the release in torchtailor.toml.",
)
def variant_unlisted(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    name = recipe.recipe_name
    if not context.identified.certain or name is None or name.suffix or recipe.variant is None:
        return
    if context.matrix.why_impossible(recipe.variant):
        return
    if name.base not in context.listed:
        yield (
            1,
            f"release {context.release.recipe_name} does not list {recipe.variant.short_name} for this CUDA version",
        )


@recipe_rule(
    "file-unknown",
    Severity.WARNING,
    "a recipe of PyTorch, torchvision or torchaudio whose file name is not a variant's",
    "Move it elsewhere, or rename it to a variant's name.",
)
def file_unknown(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.name in context.spark or (recipe.name == TOOL and context.from_wheels) or context.package:
        return
    named = recipe.name.startswith((TORCH, *SIBLINGS))
    if recipe.is_builder or not (named or recipe.returns_torch) or "-darwin-" in recipe.name:
        return  # another package, or one of a platform that no variant is for
    if recipe.recipe_name is None:
        yield 1, "the file name is not pytorch-python3XX-[cudaX_Y-]GPU-CPU"
    elif recipe.variant is None:
        yield 1, "the GPU, CUDA version or instruction set in the file name is unknown"


@recipe_rule(
    "stale",
    Severity.ERROR,
    "a generated recipe that differs from what the catalog generates now",
    "Run `torchtailor recipes write`.",
)
def stale(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.origin is not FileOrigin.GENERATED:
        return
    text = rerender(context.catalog, context.pins, recipe)
    if text is None or text == recipe.text:
        return
    pairs = enumerate(zip(recipe.text.splitlines(), text.splitlines(), strict=False), 1)
    differs = (at for at, (old, new) in pairs if old != new and "torchtailor-content" not in old)
    yield next(differs, 1), "the catalog has changed since this was generated"


@tree_rule(
    "table-stale",
    Severity.WARNING,
    "a generated manifest, library or table of recipes that was changed by hand or does not match the tree",
    "Run `torchtailor recipes write` for the whole tree.",
)
def table_stale(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    library = library_files(context.catalog, context.pins)
    for name, text in library.items():
        path = context.tree.flox / name
        if path.is_file() and path.read_text("utf-8", errors="replace") != text:
            yield path, 3, "it is not what torchtailor writes now: it was changed by hand, or the catalog has changed"
    for name in ("README.md", "env/manifest.toml", "default.nix"):
        path = context.tree.flox / name
        if not path.is_file():
            continue
        text = read_document(path)
        if origin(text) is FileOrigin.EDITED:
            yield path, 3, "the text does not match the hash in the header: it was changed by hand"
        elif origin(text) is FileOrigin.GENERATED and name == "README.md":
            listed = set(_ROW.findall(text))
            there = {
                recipe.name
                for recipe in context.recipes
                if recipe.origin is FileOrigin.GENERATED and not recipe.is_sibling and recipe.name != TOOL
            }
            for missing in sorted(there - listed):
                yield path, 1, f"{missing} is not in the table"
            for gone in sorted(listed - context.names):
                line = next((at for at, row in enumerate(text.splitlines(), 1) if f"`{gone}`" in row), 1)
                yield path, line, f"{gone} is in the table, but not in the tree"


@tree_rule(
    "manifest-clash",
    Severity.ERROR,
    "a name in the manifest's [build] that is also a recipe: Flox rejects that",
    "Remove it from [build] in .flox/env/manifest.toml.",
)
def manifest_clash(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    path = context.tree.flox / "env" / "manifest.toml"
    if not path.is_file():
        return
    text = read_document(path)
    try:
        build = decode_toml(text).get("build", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        yield path, 1, f"it is not TOML: {error}"
        return
    for name in build if isinstance(build, dict) else ():
        if name in context.names:
            line = next((at for at, row in enumerate(text.splitlines(), 1) if name in row.partition("#")[0]), 1)
            yield path, line, f"{name} is both in [build] and in .flox/pkgs"
