"""Trees that are not as `recipes write` leaves them: other packages, links, folders, nixpkgs by Git."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import pytest

from tests.unit.nix.conftest import write_tree
from torchtailor.building.nix.many import plan_recipes
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, NoMatchError, UsageError
from torchtailor.nix.audit import audit
from torchtailor.nix.nix import has_nix
from torchtailor.nix.tree import find_trees
from torchtailor.nix.write import plan_trees

needs_nix = pytest.mark.skipif(not has_nix(), reason="Nix is not installed")
# Recipes are built on machines of their own platform.
VARIANT = "sm90-armv9" if platform.machine() == "aarch64" else "sm90-avx512"
NAME = f"pytorch-python313-cuda13_0-{VARIANT}"


@pytest.fixture
def tree(catalog: Catalog, tmp_path: Path) -> Path:
    write_tree(catalog, tmp_path, "cuda-13_0", VARIANT)
    return tmp_path


def rules(catalog: Catalog, root: Path, name: str) -> set[str]:
    (report,) = audit(catalog, root)
    return {finding.rule for finding in report.findings if finding.file.endswith(f"/{name}.nix")}


@needs_nix
def test_other_packages_are_not_judged_by_the_stand_in(catalog: Catalog, tree: Path) -> None:
    pkgs = tree / ".flox" / "pkgs"
    (pkgs / "hello.nix").write_text("{ pkgs }: pkgs.hello\n")
    (pkgs / "data.nix").write_text("{ a = 1; }\n")
    (pkgs / "empty.nix").write_text("# nothing\n")
    assert rules(catalog, tree, "hello") == rules(catalog, tree, "data") == {"file-unknown"}
    assert rules(catalog, tree, "empty") == {"file-unknown", "syntax"}
    assert [job.name for job in plan_recipes(catalog, tree, (), tree / "out").jobs] == [NAME]
    assert [job.name for job in plan_recipes(catalog, tree, ["hello"], tree / "out").jobs] == ["hello"]


def test_nixpkgs_by_a_git_revision_is_pinned(catalog: Catalog, tree: Path) -> None:
    path = tree / ".flox" / "pkgs" / f"{NAME}.nix"
    lines = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith("# ")]
    text = "".join(lines).replace("builtins.fetchTarball {", "builtins.fetchGit {", 1)
    start, end = text.index('    url = "'), text.index("  },")
    for rev, found in (
        ("6a030d535719c5190187c4cec156f335e95e3211", set()),
        ("fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3", {"pin-wrong", "evaluation"} if has_nix() else {"pin-wrong"}),
    ):
        fetched = f'    url = "https://github.com/NixOS/nixpkgs.git";\n    rev = "{rev}";\n'
        path.write_text(text[:start] + fetched + text[end:])
        assert rules(catalog, tree, NAME) == found


def test_folders_and_links_that_end_in_nix(catalog: Catalog, tree: Path) -> None:
    (tree / ".flox" / "pkgs" / "folder.nix").mkdir()
    assert rules(catalog, tree, NAME) == set()
    (tree / ".flox" / "pkgs" / "gone.nix").symlink_to("nowhere.nix")
    assert rules(catalog, tree, "gone") == {"unreadable", "file-unknown"}
    assert rules(catalog, tree, NAME) == set()


def test_a_tree_without_recipes_does_not_pass(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / ".flox" / "pkgs").mkdir(parents=True)
    assert main(["recipes", "check", str(tmp_path)]) == ExitCode.NO_MATCH
    with pytest.raises(NoMatchError, match="There are no recipes in"):
        find_trees(tmp_path)


def test_releases_are_not_written_below_a_tree_of_others(catalog: Catalog, tree: Path) -> None:
    (tree / ".flox" / "env" / "manifest.toml").unlink()
    with pytest.raises(UsageError, match="their release is not known") as caught:
        plan_trees(catalog, tree)
    assert "--release" in str(caught.value.hint)
    (plan,) = plan_trees(catalog, tree, releases=["cuda-13_0"], globs=[VARIANT])
    assert plan.tree.root == tree


@needs_nix
def test_commands_of_a_dry_run_can_be_pasted(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_tree(catalog, tmp_path / "my tree", "cuda-13_0", VARIANT)
    assert main(["recipes", "build", "--dry-run", "--tree", str(root)]) == ExitCode.OK
    words = shlex.split(capsys.readouterr().out)
    assert str(root / ".flox" / "pkgs" / f"{NAME}.nix") in words


@needs_nix
def test_recipes_of_one_name_in_several_trees_have_results_and_logs_of_their_own(
    catalog: Catalog, tmp_path: Path
) -> None:
    for release in ("cuda-12_9", "cuda-13_0"):
        write_tree(catalog, tmp_path / release, release, "cpu-*")
    jobs = plan_recipes(catalog, tmp_path, (), tmp_path / "out").jobs
    assert len({job.name for job in jobs}) < len(jobs)
    assert len({job.link for job in jobs}) == len({job.logs for job in jobs}) == len(jobs)
