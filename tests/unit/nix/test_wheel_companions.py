"""Recipes from wheels keep the companions that an earlier call asked for."""

from __future__ import annotations

from pathlib import Path

from tests.unit.building import stack
from tests.unit.fetch.packages import html_index
from tests.unit.fetch.serving import Site, serve
from torchtailor.catalog import Catalog
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings
from torchtailor.nix.wheels import WheelPins
from torchtailor.nix.write import plan_trees

NAME = "pytorch-python313-cuda12_8-sm90-avx512"


def write(catalog: Catalog, root: Path, *siblings: str) -> str:
    """One call of `recipes write --via wheel --with`, and the recipe after it."""
    with serve(Site()) as site:
        site.content |= html_index(stack.packages())
        source = IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "test")
        settings = IndexSettings(sources=(source,), timeout=5.0, retries=2, explicit_index=True)
        wheels = WheelPins(catalog, Finder(settings, Cache(root / "cache")))
        tree = root / "tree"
        (plan,) = plan_trees(catalog, tree, releases=["main"], globs=[NAME], wheels=wheels, siblings=siblings)
    plan.apply()
    return (tree / ".flox" / "pkgs" / f"{NAME}.nix").read_text()


def test_a_second_write_keeps_the_wheels_of_companions(catalog: Catalog, tmp_path: Path) -> None:
    first = write(catalog, tmp_path, "torchvision")
    assert 'pname = "torchvision";' in first
    assert write(catalog, tmp_path) == first
