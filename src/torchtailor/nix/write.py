"""Writes recipes: plans what changes in a tree, then writes file by file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import NIX
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.catalog.variants.matrix import matrix_of
from torchtailor.catalog.variants.rules import coverage
from torchtailor.catalog.variants.select import select
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.disk import write_output
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.trust import Limit, read_limited
from torchtailor.nix.blueprint import BlasChoice, Blueprint
from torchtailor.nix.pins import Pins, load_pins
from torchtailor.nix.render import (
    RecipeOrigin,
    environment_files,
    render_all,
    render_sibling,
    sibling_name,
    spark_names,
)
from torchtailor.nix.tree import FileOrigin, RecipeTree, origin, read_recipe, tree_at
from torchtailor.nix.wheels import WheelPins, render_wheels, tool_files, wheel_variants

_WHEELS = re.compile(r"^# From: wheels$", re.MULTILINE)
_SIBLINGS = re.compile(r"^# With: (.+)$", re.MULTILINE)
_SELECTION = re.compile(r"^# Selection (\S+): (.+)$", re.MULTILINE)  # as in manifest.toml.j2


class Action(Enum):
    """What happens to a file."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    KEEP_EDITED = "keep-edited"  # generated, then changed by hand
    KEEP_FOREIGN = "keep-foreign"  # not written by torchtailor


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a plan."""

    path: Path
    action: Action
    content: bytes


@dataclass(frozen=True, slots=True)
class MissingRecipes:
    """Variants that have no recipe, and why."""

    reason: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class WritePlan:
    """What writing a tree changes."""

    tree: RecipeTree
    release: str
    steps: tuple[Step, ...]
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by the reason, variants without a recipe
    unknown_hashes: tuple[str, ...] = ()  # of nixpkgs and sources, as the lock names them

    def of(self, *actions: Action) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action in actions)

    def apply(self) -> None:
        for step in self.of(Action.CREATE, Action.UPDATE):
            write_output(step.path, step.content)

    @property
    def root(self) -> Path:
        return self.tree.root

    @property
    def without_recipe(self) -> tuple[MissingRecipes, ...]:
        return tuple(MissingRecipes(reason, names) for reason, names in self.missing.items())


class WrittenFile(Struct):
    """One file of a tree."""

    path: Path
    action: Action


class WrittenTree(Struct):
    """What writing a tree changes."""

    root: Path
    release: str
    steps: tuple[WrittenFile, ...] = msgspec.field(name="files")
    without_recipe: tuple[MissingRecipes, ...] = msgspec.field(name="missing")
    unknown_hashes: Annotated[tuple[str, ...], Meta(description="what `recipes hash` has to find")]


class WriteDocument(Struct):
    """What writing the trees of all releases changes."""

    trees: tuple[WrittenTree, ...]


def recipe_releases(catalog: Catalog) -> tuple[str, ...]:
    """The releases that recipes are written for."""
    return tuple(release.recipe_name for release in catalog.releases.values() if release.nixpkgs)


def recipe_variants(
    catalog: Catalog, release: str, globs: Sequence[str] = (), pythons: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """The variants of a release that recipes can be written for, in the matrix's order."""
    found = catalog.release(release)
    if found.nixpkgs is None:
        raise NoMatchError(
            f"There are no recipes for release {found.recipe_name}.",
            f"Recipes are written for {', '.join(recipe_releases(catalog))}.",
        )
    variants: list[Variant] = []
    for python in pythons or (DEFAULT_PYTHON,):
        offered = matrix_of(catalog).variants(found.recipe_name, python)
        possible = [variant for variant in offered if coverage(catalog, variant, NIX).available]
        if not possible:
            raise UsageError(
                f"Release {found.recipe_name} has no recipes for Python {python}.",
                "`torchtailor matrix --python 3.12` lists what there is.",
            )
        variants += possible
    return select(variants, globs)


def plan_trees(
    catalog: Catalog,
    root: Path,
    *,
    releases: Sequence[str] = (),
    globs: Sequence[str] = (),
    pythons: Sequence[str] = (),
    blas: BlasChoice = BlasChoice.OPENBLAS,
    spark: bool = False,
    siblings: Sequence[str] = (),
    wheels: WheelPins | None = None,
    nvidia: bool = False,
    force: bool = False,
) -> tuple[WritePlan, ...]:
    """One plan per release; several releases get a folder each, because their CPU recipes share names.

    With `wheels`, the recipes make torch from official wheels instead of its source.
    """
    made_from = RecipeOrigin.WHEELS if wheels else RecipeOrigin.SOURCE
    names = _releases(catalog, root, releases, made_from)
    plans = []
    for name in names:
        tree = tree_at(root if len(names) == 1 else root / name)
        pins = load_pins(tree.flox)
        variants = (
            wheel_variants(catalog, pins, matrix_of(catalog), name, globs, pythons)
            if wheels
            else recipe_variants(catalog, name, globs, pythons)
        )
        if not variants:
            continue
        _refuse_mixing(tree, name, made_from)
        with_spark = spark and name == pins.file.spark.release
        wanted = tuple(dict.fromkeys((*written_siblings(tree), *siblings)))
        there = _already_there(tree)
        earlier = [variant for variant in matrix_of(catalog).variants(name, "all") if variant.name in there]
        if wheels:
            found, missing = render_wheels(pins, variants, wheels, nvidia=nvidia, companions=wanted)
            variants = tuple(variant for variant in variants if variant.name in found)
            recipes = {f"pkgs/{name}.nix": text for name, text in found.items()}
        else:
            missing = {}
            recipes = {
                **_missing_siblings(catalog, pins, tree, earlier, wanted),
                **render_all(catalog, pins, variants, blas=blas, spark=with_spark, siblings=wanted),
            }
        shown = {variant.name for variant in variants} | there
        extra = sorted(spark_names(pins) & tree.recipes.keys()) if name == pins.file.spark.release else []
        texts: Mapping[str, str] = {
            **recipes,
            **environment_files(
                catalog,
                pins,
                [variant for variant in matrix_of(catalog).variants(name, "all") if variant.name in shown],
                sorted(spark_names(pins)) if with_spark else extra,
                selection=_selection(tree, earlier, variants, globs),
                siblings=wanted,
                origin=made_from,
            ),
        }
        contents = {path: text.encode() for path, text in texts.items()}
        if wheels:
            contents |= tool_files(pins)
        unknown = _unknown_hashes(catalog, pins, name, made_from, wanted, spark=with_spark)
        plan = plan_files(tree, name, contents, force=force)
        plans.append(replace(plan, missing=missing, unknown_hashes=unknown))
    if not plans:
        raise NoMatchError(
            f"No variant of {', '.join(names)} matches {' '.join(globs)}.",
            "`torchtailor matrix` lists the names.",
        )
    return tuple(plans)


def plan_files(tree: RecipeTree, release: str, contents: Mapping[str, bytes], *, force: bool) -> WritePlan:
    """What to do with each file."""
    paths = {tree.flox / name: content for name, content in contents.items()}
    steps = (Step(path, _action(path, content, force=force), content) for path, content in paths.items())
    return WritePlan(tree, release, tuple(steps))


def _unknown_hashes(
    catalog: Catalog, pins: Pins, release: str, made_from: RecipeOrigin, siblings: Sequence[str], *, spark: bool
) -> tuple[str, ...]:
    """What the recipes of a release fetch without a known hash."""
    if made_from is RecipeOrigin.WHEELS:
        return () if pins.hash_of(pins.newest) else (pins.newest.key,)
    pin = pins.nixpkgs(str(catalog.release(release).nixpkgs))
    version = str(catalog.release(release).version)
    sources = [{"version": version}, *([{"version": pins.file.spark.nightly.version}] if spark else [])]
    if version != pin.torch:
        rows = ((name, pins.sibling(name).for_torch(version)) for name in siblings)
        sources += [{"package": name, "version": row.version} for name, row in rows if row]
    keys = ["" if pins.hash_of(pin) else pin.key, *(pins.unknown_source(source) for source in sources)]
    return tuple(key for key in keys if key)


def _already_there(tree: RecipeTree) -> set[str]:
    """The recipes of earlier calls, which the table lists too."""
    return {name for name, path in tree.recipes.items() if origin(read_recipe(path)) is not FileOrigin.FOREIGN}


def _missing_siblings(
    catalog: Catalog, pins: Pins, tree: RecipeTree, variants: Sequence[Variant], siblings: Sequence[str]
) -> Mapping[str, str]:
    """The siblings that variants of earlier calls lack, by their path under `.flox`."""
    return {
        f"pkgs/{sibling_name(name, variant)}.nix": render_sibling(Blueprint(catalog, pins, variant), pins.sibling(name))
        for variant in variants
        for name in siblings
        if sibling_name(name, variant) not in tree.recipes
    }


def _selection(
    tree: RecipeTree, earlier: Sequence[Variant], variants: Sequence[Variant], globs: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """By Python, the selectors of this call and of earlier ones; none for one that has the whole release."""
    before = written_selection(tree)
    found = dict(before or {})
    whole = {variant.python for variant in earlier} - found.keys() if before is not None else set()
    for python in dict.fromkeys(variant.python for variant in variants):
        if not globs:
            found.pop(python, None)
        elif python not in whole:
            found[python] = tuple(dict.fromkeys((*found.get(python, ()), *globs)))
    return found


def _action(path: Path, content: bytes, *, force: bool) -> Action:
    if not path.exists():
        return Action.CREATE
    if path.suffix == ".whl":  # its name says what it is
        return Action.UNCHANGED if read_limited(path, Limit.RECIPE) == content else Action.UPDATE
    current = read_recipe(path)
    if current.encode() == content:
        return Action.UNCHANGED
    found = origin(current)
    if found is FileOrigin.FOREIGN:
        return Action.KEEP_FOREIGN
    if found is FileOrigin.EDITED and not force:
        return Action.KEEP_EDITED
    return Action.UPDATE


def _releases(catalog: Catalog, root: Path, asked: Sequence[str], made_from: RecipeOrigin) -> tuple[str, ...]:
    wheels = made_from is RecipeOrigin.WHEELS
    if asked:
        every = (
            tuple(release.recipe_name for release in catalog.releases.values()) if wheels else recipe_releases(catalog)
        )
        return tuple(
            dict.fromkeys(
                name for item in asked for name in (every if item == "all" else (catalog.release(item).recipe_name,))
            )
        )
    tree = tree_at(root)
    if tree.recipes and not written_release(tree):
        raise UsageError(
            f"{root} has recipes that `recipes write` did not write, so their release is not known.",
            "Name the release to write here with --release, or give an empty folder.",
        )
    if written := written_release(tree):
        return written
    newest = max(catalog.releases.values(), key=lambda one: one.version)
    return (newest.recipe_name,) if wheels else recipe_releases(catalog)


def written_release(tree: RecipeTree) -> tuple[str, ...]:
    """The release that an earlier `recipes write` put here, from the manifest's header."""
    manifest = tree.flox / "env" / "manifest.toml"
    if not manifest.is_file() or origin(text := read_recipe(manifest)) is FileOrigin.FOREIGN:
        return ()
    return (text.splitlines()[0].rstrip(".").rpartition(" ")[2],)


def written_selection(tree: RecipeTree) -> Mapping[str, tuple[str, ...]] | None:
    """By Python, the selectors that `recipes write` wrote this tree with; None if it did not.

    A Python without any has the whole release.
    """
    if not written_release(tree):
        return None
    found = _SELECTION.finditer(read_recipe(tree.flox / "env" / "manifest.toml"))
    return {match[1]: tuple(match[2].split()) for match in found}


def tree_variants(catalog: Catalog, release: str, tree: RecipeTree, pythons: Sequence[str]) -> tuple[Variant, ...]:
    """The variants that a tree should have: those it was written with, else all of the release."""
    selection = written_selection(tree) or {}
    return tuple(
        variant
        for python in pythons or (DEFAULT_PYTHON,)
        for variant in recipe_variants(catalog, release, selection.get(python, ()), [python])
    )


def written_siblings(tree: RecipeTree) -> tuple[str, ...]:
    """The packages that `recipes write --with` wrote beside torch."""
    if not written_release(tree):
        return ()
    found = _SIBLINGS.search(read_recipe(tree.flox / "env" / "manifest.toml"))
    return tuple(found[1].split()) if found else ()


def written_origin(tree: RecipeTree) -> RecipeOrigin:
    """What the recipes that `recipes write` put here make torch from."""
    if written_release(tree) and _WHEELS.search(read_recipe(tree.flox / "env" / "manifest.toml")):
        return RecipeOrigin.WHEELS
    return RecipeOrigin.SOURCE


def _refuse_mixing(tree: RecipeTree, release: str, made_from: RecipeOrigin) -> None:
    """Releases share names, and so do recipes from source and from wheels: one tree cannot hold both."""
    if written_release(tree) and written_origin(tree) is not made_from:
        raise UsageError(
            f"{tree.root} holds recipes that make torch from {written_origin(tree).value}, not from {made_from.value}.",
            "Give each a folder of its own.",
        )
    if any(written != release for written in written_release(tree)):
        raise UsageError(
            f"{tree.root} holds the recipes of release {written_release(tree)[0]}, not of {release}.",
            "Give each release a folder of its own.",
        )
