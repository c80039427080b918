"""`recipes build`: several recipes of a tree with a real Nix in a private store, and a binary cache."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from tests.integration.nix.conftest import needs_nix
from torchtailor.building.nix import builder as nix_runs
from torchtailor.building.nix.many import build_recipes, plan_recipes
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode, NoMatchError, UsageError

pytestmark = [needs_nix, pytest.mark.nix]
ISAS = {"x86_64": ("avx2", "avx512", "armv9"), "aarch64": ("armv8_2", "armv9", "avx2")}[platform.machine()]
FIRST, SECOND, OTHER = (f"pytorch-python313-cpu-{isa}" for isa in ISAS)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nix_runs, "NEEDED_BYTES", 1)
    pkgs = tmp_path / "tree" / ".flox" / "pkgs"
    pkgs.mkdir(parents=True)
    for name, script in ((FIRST, "echo one > $out"), (SECOND, "echo two > $out"), (OTHER, "exit 1")):
        (pkgs / f"{name}.nix").write_text(
            f'{{ pkgs ? null }}: derivation {{ name = "{name}"; builder = "/bin/sh"; args = [ "-c" "{script}" ]; '
            "system = builtins.currentSystem; }\n"
        )
    return tmp_path / "tree"


def test_what_matches_is_built_and_other_platforms_are_left_out(
    private_store: Path, catalog: Catalog, tree: Path, tmp_path: Path
) -> None:
    plan = plan_recipes(catalog, tree, [], tmp_path / "out", parallel=2)
    assert [job.name for job in plan.jobs] == [FIRST, SECOND]
    assert plan.elsewhere == (OTHER,)
    results = build_recipes(plan, needed=1)
    assert [item.error for item in results] == [None, None]
    assert (tmp_path / "out" / f"result-{FIRST}").read_text() == "one\n"
    with pytest.raises(NoMatchError, match="No recipe"):
        plan_recipes(catalog, tree, ["sm90-*"], tmp_path / "out")
    with pytest.raises(NoMatchError, match="other platforms"):
        plan_recipes(catalog, tree, [OTHER], tmp_path / "out")


def test_a_file_that_cannot_be_read_stops_only_what_wants_it(catalog: Catalog, tree: Path, tmp_path: Path) -> None:
    pkgs = tree / ".flox" / "pkgs"
    (pkgs / "notes.nix").write_bytes(b"\xff")
    assert [job.name for job in plan_recipes(catalog, tree, [], tmp_path / "out").jobs] == [FIRST, SECOND]
    (pkgs / f"{SECOND}.nix").write_bytes(b"\xff")
    assert [job.name for job in plan_recipes(catalog, tree, [FIRST], tmp_path / "out").jobs] == [FIRST]
    with pytest.raises(BadInputError, match=rf"{SECOND}\.nix is not UTF-8"):
        plan_recipes(catalog, tree, [], tmp_path / "out")


def test_one_that_fails_does_not_stop_the_others(
    private_store: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / ".flox" / "pkgs" / f"{FIRST}.nix"
    path.write_text(path.read_text().replace("echo one > $out", "exit 3"))
    line = ["recipes", "build", "cpu-*", "--tree", str(tree), "-o", str(tmp_path / "out"), "--jobs", "2", "--json"]
    assert main(line) == ExitCode.BUILD_FAILED
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    state = {item["name"]: item["built"] is not None for item in document["results"]}
    assert state == {FIRST: False, SECOND: True}
    assert "1 of 2 recipes failed" in captured.err


def test_what_is_built_is_copied_to_a_cache(private_store: Path, catalog: Catalog, tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache-of-binaries"
    plan = plan_recipes(catalog, tree, [FIRST], tmp_path / "out", cache=f"file://{cache}")
    (result,) = build_recipes(plan, needed=1)
    assert result.error is None
    assert result.copied
    assert list(cache.glob("*.narinfo"))
    broken = plan_recipes(catalog, tree, [FIRST], tmp_path / "out", cache="nonsense://nowhere")
    (result,) = build_recipes(broken, needed=1)
    assert result.error is not None
    assert "could not be copied" in result.error.message


@pytest.mark.parametrize("address", ["--option", "just-a-name"])
def test_an_address_that_is_none_is_refused(catalog: Catalog, tree: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError):
        plan_recipes(catalog, tree, [], tmp_path / "out", cache=address)


def test_a_dry_run_shows_the_commands(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "build", "--tree", str(tree), "-o", str(tmp_path / "out"), "-n"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.count("nix-build") == 2
    assert not (tmp_path / "out").exists()
