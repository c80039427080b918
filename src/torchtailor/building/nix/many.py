"""Builds several recipes of a tree, some at a time, and copies what was built to a binary cache."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from torchtailor.building.graph.here import run_each
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.nix.builder import NixOutput, run_nix_job
from torchtailor.building.nix.job import NixJob, NixJobDocument, default_cores, nix_job
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.variants.select import expand_braces
from torchtailor.core.errors import BuildFailedError, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.trust import no_option
from torchtailor.core.urls import redact
from torchtailor.nix.audit import open_tree
from torchtailor.nix.nix import need_tool, run_nix
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.tree import RecipeTree, find_trees

_COPY = ("--extra-experimental-features", "nix-command", "copy")


@dataclass(frozen=True)
class RecipesPlan:
    """The recipes to build, how many at a time, and those that another platform must build."""

    jobs: tuple[NixJob, ...]
    parallel: int
    elsewhere: tuple[str, ...]
    cache: str | None

    @property
    def shown_cache(self) -> str | None:
        return redact(self.cache) if self.cache else None


@dataclass(frozen=True)
class RecipeBuild:
    """What became of one recipe."""

    name: str
    output: NixOutput | None = None
    error: TorchtailorError | None = None
    copied: bool = False

    @property
    def why(self) -> str | None:
        return self.error.message if self.error else None


class RecipesPlanDocument(Struct):
    """The recipes to build, how many at a time, and those that another platform must build."""

    jobs: tuple[NixJobDocument, ...]
    parallel: int
    elsewhere: tuple[str, ...]
    shown_cache: str | None = field(name="cache")


class RecipeBuildDocument(Struct):
    """What became of one recipe."""

    name: str
    output: NixOutput | None = field(name="built")
    why: str | None = field(name="error")
    copied: bool


class RecipesBuildDocument(Struct):
    """The recipes of a tree, and what became of each."""

    plan: RecipesPlanDocument
    results: tuple[RecipeBuildDocument, ...]


def plan_recipes(
    catalog: Catalog,
    root: Path,
    globs: Sequence[str],
    out: Path,
    *,
    parallel: int = 1,
    cores: int | None = None,
    cache: str | None = None,
) -> RecipesPlan:
    """The jobs of the recipes that match, of all without a pattern; each gets its share of cores."""
    if cache is not None:
        _check_cache(cache)
    trees = find_trees(root)
    chosen = [(tree, recipe) for tree in trees for recipe in _select(catalog, tree, globs)]
    if not chosen:
        message = f"No recipe in {root} matches {' '.join(globs)}." if globs else f"There are no recipes in {root}."
        raise NoMatchError(message, f"`ls {root}/.flox/pkgs` lists them.")
    own = f"{platform.machine()}-linux"
    here = [(tree, recipe) for tree, recipe in chosen if recipe.variant is None or recipe.variant.platform == own]
    elsewhere = tuple(recipe.name for tree, recipe in chosen if (tree, recipe) not in here)
    if not here:
        raise NoMatchError(
            f"The recipes that match are for other platforms than {own}: {', '.join(elsewhere[:4])}.",
            "Build them on a machine of their platform.",
        )
    share = cores or max(1, default_cores() // max(1, min(parallel, len(here))))
    # CPU recipes of several releases share their names.
    folders = {tree.root: out / tree.root.name if len(trees) > 1 else out for tree in trees}
    jobs = tuple(
        nix_job(recipe.name, recipe.path, folders[tree.root], tree=tree.root, cores=share) for tree, recipe in here
    )
    return RecipesPlan(jobs, max(1, min(parallel, len(jobs))), elsewhere, cache)


def build_recipes(
    plan: RecipesPlan,
    *,
    done: Callable[[RecipeBuild], None] = lambda _: None,
    needed: int | None = None,
) -> tuple[RecipeBuild, ...]:
    """Build them; one that fails does not stop the others."""
    speaking = threading.Lock()

    def build(job: NixJob) -> RecipeBuild:
        try:
            output = run_nix_job(job, ledger=Ledger(), needed=needed)
            if plan.cache:
                copy_to_cache([str(output.store_path)], plan.cache)
            result = RecipeBuild(job.name, output, copied=plan.cache is not None)
        except TorchtailorError as error:
            result = RecipeBuild(job.name, error=error)
        with speaking:
            done(result)
        return result

    return run_each((partial(build, job) for job in plan.jobs), at_a_time=plan.parallel)


def copy_to_cache(paths: Sequence[str], cache: str, *, derivation: bool = False) -> None:
    """Copy store paths and all they need to a binary cache: `nix copy --to`; with `derivation`, not what they give."""
    need_tool("nix")
    kind = ("--derivation",) if derivation else ()
    finished = run_nix("nix", [*_COPY, *kind, "--to", cache, *paths])
    if finished.code != 0:
        last = next((line for line in reversed(finished.err.splitlines()) if line.strip()), "no reason was given")
        last = redact(last.strip())
        name = Path(paths[0]).name
        raise BuildFailedError(
            f"{name} could not be copied to {redact(cache)}: {last}"
            if derivation
            else f"{name} was built, but could not be copied to {redact(cache)}: {last}",
            "Check the address and its credentials; a second run copies without building again.",
        )


def _check_cache(cache: str) -> None:
    no_option(cache, "The binary cache")
    if "://" not in cache and not cache.startswith("/"):
        raise UsageError(
            f"{cache!r} is not the address of a binary cache.",
            "Write one as `nix copy --to` takes it: s3://bucket, ssh://host, file:///folder.",
        )


def _select(catalog: Catalog, tree: RecipeTree, globs: Sequence[str]) -> list[Recipe]:
    """Recipes whose file name, or a variant's short name, matches; without patterns, every recipe."""
    patterns = [item for glob in globs for item in expand_braces(glob.lower())]
    context = open_tree(catalog, tree, with_nix=False)
    found = []
    for recipe in context.recipes:
        names = [recipe.name, *([recipe.variant.short_name] if recipe.variant and recipe.is_torch_like else [])]
        wanted = any(fnmatchcase(n, p) for n in names for p in patterns) if patterns else recipe.is_recipe
        if recipe.unread and wanted:
            raise recipe.unread
        if recipe.readable and wanted:
            found.append(recipe)
    return found
