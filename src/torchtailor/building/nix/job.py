"""What is run to build a recipe: with Flox in a tree of its own where Flox is installed, else with Nix."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from torchtailor.advise.host.capacity import capacity
from torchtailor.advise.host.probe import LiveProbe, Probe
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import ImpossibleError
from torchtailor.nix.blueprint import GIGABYTES_PER_JOB
from torchtailor.nix.nix import find_tool, need_tool
from torchtailor.nix.tree import tree_at
from torchtailor.nix.write import plan_trees, written_release


@dataclass(frozen=True)
class NixJob:
    """A command that builds one recipe."""

    name: str
    recipe: Path
    link: Path
    logs: Path
    command: tuple[str, ...]
    folder: Path
    cores: int
    environment: Mapping[str, str]

    @property
    def tool(self) -> str:
        return Path(self.command[0]).name


class NixJobDocument(Struct):
    """A command that builds one recipe."""

    name: str
    recipe: Path
    link: Path
    command: tuple[str, ...]
    cores: int


def plan_nix(
    catalog: Catalog,
    variant: Variant,
    out: Path,
    *,
    tree: Path | None = None,
    cores: int | None = None,
    write: bool = True,
) -> NixJob:
    """The job of a variant; writes its recipe below `out` where the tree has none, unless `write` is off."""
    own = f"{platform.machine()}-linux"
    if variant.platform != own:
        raise ImpossibleError(
            f"{variant.name} is for {variant.platform}, and this machine is {own}.",
            "Build it on a machine of that platform; `torchtailor recommend` lists what fits this one.",
        )
    root = (tree or Path()).resolve()
    recipe = tree_at(root).pkgs / f"{variant.name}.nix"
    if not recipe.is_file() or variant.release.recipe_name not in (
        written_release(tree_at(root)) or [variant.release.recipe_name]
    ):
        root = out.resolve() / "recipes" / variant.release.recipe_name
        recipe = tree_at(root).pkgs / f"{variant.name}.nix"
        if write:
            _write_recipe(catalog, variant, root)
    return nix_job(variant.name, recipe, out, tree=root, cores=cores)


def _write_recipe(catalog: Catalog, variant: Variant, root: Path) -> None:
    plans = plan_trees(
        catalog,
        root,
        releases=[variant.release.recipe_name],
        globs=[variant.name],
        pythons=[variant.python],
        force=True,
    )
    for plan in plans:
        plan.apply()


def nix_job(name: str, recipe: Path, out: Path, *, tree: Path | None = None, cores: int | None = None) -> NixJob:
    """The job of a recipe: `flox build` in its tree where Flox is installed, else `nix-build` or `nix build`."""
    out = out.resolve()
    jobs = cores or default_cores()
    environment = {"NIX_BUILD_CORES": str(jobs)}
    logs = out / "logs" / name
    if tree and (tree / ".flox" / "env.json").is_file() and (flox := find_tool("flox")):
        in_tree = (str(flox), "build", name)
        return NixJob(name, recipe, tree / f"result-{name}", logs, in_tree, tree, jobs, environment)
    link = out / f"result-{name}"
    options = ("--log-format", "internal-json", "-v", "--cores", str(jobs))
    command: tuple[str, ...]
    if nix_build := find_tool("nix-build"):
        command = (str(nix_build), str(recipe.resolve()), "--out-link", str(link), *options)
    else:
        experimental = ("--extra-experimental-features", "nix-command", "--impure")
        command = (
            *(str(need_tool("nix")), "build", *experimental),
            *("--file", str(recipe.resolve()), "--out-link", str(link), *options),
        )
    return NixJob(name, recipe, link, logs, command, out, jobs, environment)


def default_cores(probe: Probe | None = None) -> int:
    """As many compilers as this process has cores and memory for, within the limits of its container."""
    free = capacity(probe or LiveProbe())
    return max(1, min(free.cores, free.memory // (GIGABYTES_PER_JOB * 1024**3)))
