"""Documents and recipes in the repository are what the code makes; the extra is named where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import EnvironmentProblem, ExitCode
from torchtailor.core.extras import need_module
from torchtailor.core.origin import requirement
from torchtailor.nix.pins import Pins
from torchtailor.nix.render import environment_files
from torchtailor.nix.report import rules_table
from torchtailor.nix.write import Action, plan_trees, recipe_variants

REPO = Path(__file__).parents[3]


def test_the_table_of_rules_is_made_from_the_code() -> None:
    path = REPO / "docs" / "recipe-rules.md"
    assert path.read_text() == rules_table(), "run `torchtailor recipes rules --markdown > docs/recipe-rules.md`"


def test_the_repositorys_tree_does_not_drift(catalog: Catalog) -> None:
    (plan,) = plan_trees(catalog, REPO, releases=["cuda-13_0"])
    assert {step.action for step in plan.steps} == {Action.UNCHANGED}, "run `torchtailor recipes write .`"
    assert len([step for step in plan.steps if step.path.parent.name == "pkgs"]) == 59


def test_the_repository_passes_its_own_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "check", str(REPO)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert "0 errors" in lines[-1]
    assert len([line for line in lines if "[pin-hash]" in line]) == 1  # once for all files


def test_the_table_of_recipes_names_every_recipe(catalog: Catalog, pins: Pins) -> None:
    variants = recipe_variants(catalog, "cuda-12_9")
    readme = environment_files(catalog, pins, variants)["README.md"]
    assert all(f"[`{variant.name}`](pkgs/{variant.name}.nix)" in readme for variant in variants)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_nix", None)
    with pytest.raises(EnvironmentProblem, match="tree-sitter-nix") as caught:
        need_module("tree_sitter_nix", extra="recipes", purpose="Recipes need")
    assert requirement("recipes") in caught.value.hint


def test_the_command_says_which_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchtailor.nix import render

    render._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["recipes", "write", str(tmp_path)]) == ExitCode.ENVIRONMENT
    assert "jinja2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
