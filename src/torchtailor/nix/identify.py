"""Which release a tree of recipes is of: the PyTorch version that its recipes build decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Release
from torchtailor.core.errors import UsageError
from torchtailor.core.format import counted
from torchtailor.nix.pins import Pins
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.tree import RecipeTree
from torchtailor.nix.write import written_release


@dataclass(frozen=True, slots=True)
class TreeRelease:
    """The release that a tree is compared with, and, where that is a guess, why."""

    release: Release
    doubt: str = ""

    @property
    def certain(self) -> bool:
        return not self.doubt

    def require(self, tree: RecipeTree) -> None:
        """Refuse what must not rest on a guess."""
        if self.doubt:
            raise UsageError(f"{tree.root}: {self.doubt}", "Name the release that it should become with --release.")


def identify(catalog: Catalog, pins: Pins, tree: RecipeTree, recipes: Sequence[Recipe]) -> TreeRelease:
    """The release it was written for, else the one with the version of PyTorch that its recipes build."""
    for written in written_release(tree):
        found = [release for release in catalog.releases.values() if release.recipe_name == written]
        if found:
            return TreeRelease(found[0])
    releases = [release for release in catalog.releases.values() if release.nixpkgs]
    versions: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for recipe in recipes:
        if not (recipe.is_torch or recipe.is_sibling) or recipe.nightly:
            continue
        if version := built_version(recipe, pins, releases):
            versions[version] += 1
        for pin in recipe.all_pins:
            if pins.find_nixpkgs(pin.rev) is None:
                unknown[pin.rev[:12]] += 1
    offered = {str(release.version): release for release in releases}
    listed = ", ".join(f"{version} ({counted(count, 'recipe')})" for version, count in versions.most_common())
    if len(versions) == 1 and (only := next(iter(versions))) in offered:
        return TreeRelease(offered[only])
    guess = next((offered[version] for version, _ in versions.most_common() if version in offered), None)
    nearest = guess or _by_cuda(releases, recipes)
    if len(versions) > 1:
        return TreeRelease(nearest, f"its recipes build several versions of PyTorch: {listed}.")
    if versions:
        has = ", ".join(f"{release.recipe_name} ({release.version})" for release in releases)
        return TreeRelease(nearest, f"its recipes build PyTorch {listed}, which no release has: {has}.")
    because = f": nixpkgs {', '.join(unknown)} is unknown" if unknown else ""
    return TreeRelease(nearest, f"the version of PyTorch that its recipes build is not known{because}.")


def built_version(recipe: Recipe, pins: Pins, releases: Sequence[Release]) -> str | None:
    """The PyTorch version of a recipe: what it sets, else what its pin has; None if that is not known."""
    if recipe.upgrade:
        return recipe.upgrade.text
    revisions = {pin.rev for pin in recipe.all_pins}
    row = pins.find_nixpkgs(revisions.pop()) if len(revisions) == 1 else None
    if row:
        name = recipe.recipe_name
        cuda = name.parsed.cuda if name else None
        # A pin without the CUDA in the file name builds nothing, so it does not count.
        return row.torch if cuda is None or cuda in row.cuda else None
    tag = recipe.recipe_name.parsed.torch if recipe.recipe_name else None
    tagged = (str(release.version) for release in releases if tag and release.tag == f"pytorch{tag}")
    return next(tagged, None)


def _by_cuda(releases: Sequence[Release], recipes: Sequence[Recipe]) -> Release:
    """The release with most of the recipes' CUDA versions; the newest of several."""
    names = [recipe.recipe_name.parsed for recipe in recipes if recipe.recipe_name]
    score = Counter(
        release.recipe_name
        for release in releases
        for name in names
        if name.cuda and any(str(build.cuda) == name.cuda for build in release.cuda_builds if build.recipes)
    )
    best = max(score.values(), default=0)
    return next(release for release in reversed(releases) if score[release.recipe_name] == best)
