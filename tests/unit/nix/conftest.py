"""Trees of recipes for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.nix.pins import LOCK_NAME, Pins, load_pins, lock_text
from torchtailor.nix.write import plan_trees

HANDMADE = Path(__file__).parent / "handmade"
HASH = "sha256-" + "B" * 42 + "A="


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(tmp_path_factory.mktemp("no-user-file"))


@pytest.fixture(scope="session")
def pins() -> Pins:
    return load_pins()


def write_tree(
    catalog: Catalog, root: Path, release: str, *globs: str, spark: bool = False, locked: bool = True
) -> Path:
    """A tree as `recipes write` leaves it, its pins locked so that the audit has nothing to say."""
    if locked:
        lock = root / ".flox" / LOCK_NAME
        lock.parent.mkdir(parents=True, exist_ok=True)
        nixpkgs = {row.key: HASH for row in load_pins().file.nixpkgs}
        lock.write_text(lock_text(nixpkgs | {load_pins().file.spark.nightly.key: HASH}))
    for plan in plan_trees(catalog, root, releases=[release], globs=globs, spark=spark):
        plan.apply()
    return root
