"""The repository's flake: its recipes are those that the catalog gives, and `recipes hash` fills its pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.nix.conftest import write_tree
from torchtailor.catalog import Catalog
from torchtailor.nix.flake import fill_flake, find_flake
from torchtailor.nix.hashes import find_hashes
from torchtailor.nix.pins import load_pins, read_lock
from torchtailor.nix.syntax import NixSource
from torchtailor.nix.write import Action, plan_trees, recipe_releases, recipe_variants

REPO = Path(__file__).parents[3]
REV = "6a030d535719c5190187c4cec156f335e95e3211"
HASH = "sha256-jStizoRbLGM3Uw27hp0pLSStHG0+Xq39ZJHNI12qqpE="
OTHER = "sha256-RKiZLHBCneMtZKRgTEuW1K7+Jpi+tx11BMXuS1jC1xQ="


def tree_of(release: str) -> Path:
    return REPO if release == "cuda-13_0" else REPO / "recipes" / release


def test_the_repository_has_the_recipes_of_every_release(catalog: Catalog) -> None:
    """`make recipes` brings them up to date."""
    total = 0
    for release in recipe_releases(catalog):
        root = tree_of(release)
        (plan,) = plan_trees(catalog, root, releases=[release])
        assert [step.path.name for step in plan.steps if step.action is not Action.UNCHANGED] == []
        names = {variant.name for variant in recipe_variants(catalog, release)}
        assert {path.stem for path in (root / ".flox" / "pkgs").iterdir()} == names
        total += len(names)
    assert total == 153
    assert {path.name for path in (REPO / "recipes").iterdir()} == {*recipe_releases(catalog)} - {"cuda-13_0"}


def test_the_flake_pins_what_the_recipes_pin(catalog: Catalog) -> None:
    source = NixSource((REPO / "flake.nix").read_text())
    pins = {catalog.release(name).nixpkgs for name in recipe_releases(catalog)}
    assert {source.value(binding.node) for binding in source.named("rev")} == pins


def test_the_flake_has_every_hash_that_is_known() -> None:
    for lock in REPO.glob("**/.flox"):
        known = {key.removeprefix("nixpkgs/"): value for key, value in read_lock(lock).items()}
        assert fill_flake(REPO / "flake.nix", known) is None


def test_the_pins_of_the_repository_get_hashes(tmp_path: Path) -> None:
    flake = tmp_path / "flake.nix"
    flake.write_text((REPO / "flake.nix").read_text())
    older = load_pins().file.nixpkgs[0].rev
    filled = fill_flake(flake, {REV: HASH, older: OTHER})
    assert filled is not None
    assert filled.hashes == {REV: HASH, older: OTHER}
    assert NixSource(filled.text).error_line is None
    for rev, value in filled.hashes.items():
        assert f'rev = "{rev}";\n{" " * (4 if rev == REV else 8)}narHash = "{value}";\n' in filled.text
    flake.write_text(filled.text)
    assert fill_flake(flake, {REV: HASH, older: OTHER}) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f'{{ inputs.n.type = "github"; inputs.n.rev = "{REV}"; outputs = _: {{ }}; }}',
            f'{{ inputs.n.type = "github"; inputs.n.rev = "{REV}"; inputs.n.narHash = "{HASH}"; outputs = _: {{ }}; }}',
        ),
        (
            f'{{ inputs.n = {{ type = "github"; rev = "{REV}"; narHash = ""; }}; }}',
            f'{{ inputs.n = {{ type = "github"; rev = "{REV}"; narHash = "{HASH}"; }}; }}',
        ),
        (f'{{ inputs.n = {{ type = "github"; rev = "{REV}"; narHash = "{OTHER}"; }}; }}', None),
        (f'{{ inputs.n = {{ type = "github"; rev = "{"0" * 40}"; }}; }}', None),
        (f'{{ # type = "github"; rev = "{REV}";\n  outputs = _: {{ }}; }}', None),
        (f'{{ outputs = _: fetchFromGitHub {{ owner = "NixOS"; rev = "{REV}"; hash = ""; }}; }}', None),
        (f'{{ inputs.n = {{ type = "github"; rev = "{REV}"; ', None),
    ],
)
def test_only_pins_without_a_hash_are_filled(tmp_path: Path, before: str, after: str | None) -> None:
    flake = tmp_path / "flake.nix"
    flake.write_text(before)
    filled = fill_flake(flake, {REV: HASH})
    if after is None:
        assert filled is None
    else:
        assert filled is not None
        assert " ".join(filled.text.split()) == " ".join(after.split())


def test_the_flake_of_a_tree_is_in_the_same_repository(tmp_path: Path) -> None:
    tree = tmp_path / "repository" / "recipes" / "main"
    tree.mkdir(parents=True)
    (tmp_path / "flake.nix").write_text("{ }")
    (tmp_path / "repository" / ".git").mkdir()
    assert find_flake(tree) is None
    own = tmp_path / "repository" / "flake.nix"
    own.write_text("{ }")
    assert find_flake(tree) == own


def test_recipes_hash_fills_the_flake(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtailor.nix.hashes.need_tool", Path)
    monkeypatch.setattr("torchtailor.nix.hashes.prefetch_tarball", lambda url: HASH)
    for plan in plan_trees(catalog, tmp_path, releases=["cuda-13_0"], globs=["sm90-avx512"]):
        plan.apply()
    flake = tmp_path / "flake.nix"
    original = (REPO / "flake.nix").read_text()
    flake.write_text(original)
    (planned,) = find_hashes(catalog, tmp_path, dry_run=True)
    assert {item.recipe for item in planned.found} == {"pytorch-python313-cuda13_0-sm90-avx512", "flake.nix"}
    assert flake.read_text() == original
    (result,) = find_hashes(catalog, tmp_path)
    assert flake in result.written
    assert f'narHash = "{HASH}";' in flake.read_text()
    # A flake that is added later gets the hash from the lock, without another fetch.
    flake.write_text(original)
    monkeypatch.setattr("torchtailor.nix.hashes.prefetch_tarball", lambda url: pytest.fail("fetched again"))
    (again,) = find_hashes(catalog, tmp_path)
    assert again.written == (flake,)
    assert [found.found for found in find_hashes(catalog, tmp_path)] == [()]


def test_a_recipe_added_later_gets_the_hash_of_the_lock(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtailor.nix.hashes.need_tool", Path)
    monkeypatch.setattr("torchtailor.nix.hashes.prefetch_tarball", lambda url: pytest.fail("fetched again"))
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-avx512")
    (known,) = {value for key, value in read_lock(tmp_path / ".flox").items() if key.endswith(REV)}
    mine = tmp_path / ".flox" / "pkgs" / "mine.nix"
    mine.write_text(
        f'import (fetchTarball {{\n  url = "https://github.com/NixOS/nixpkgs/archive/{REV}.tar.gz";\n}}) {{ }}\n'
    )
    (result,) = find_hashes(catalog, tmp_path)
    assert f'sha256 = "{known}";' in mine.read_text()
    assert mine in result.written
