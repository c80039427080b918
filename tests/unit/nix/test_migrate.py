"""Migration of a hand-made tree, as the seeds' plan has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.nix.conftest import HANDMADE, write_tree
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode
from torchtailor.nix.audit import audit
from torchtailor.nix.migrate import MigrationStatus, plan_migration
from torchtailor.nix.tree import find_trees, tree_at

PREFIX = "pytorch-python313-cuda13_0-"


@pytest.fixture
def handmade(tmp_path: Path) -> Path:
    shutil.copytree(HANDMADE, tmp_path / "tree")
    return tmp_path / "tree"


def names(root: Path) -> set[str]:
    return {path.stem for path in (root / ".flox" / "pkgs").glob("*.nix")}


def test_a_tree_that_was_written_with_a_selection_stays_one(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-*")
    (tmp_path / ".flox" / "pkgs" / f"{PREFIX}sm90-avx2.nix").unlink()
    migration = plan_migration(catalog, tree_at(tmp_path))
    assert [recipe.name for recipe in migration.of(MigrationStatus.CREATED)] == [f"{PREFIX}sm90-avx2"]
    assert migration.total == 6


def test_the_plan_of_the_seeds(catalog: Catalog, handmade: Path) -> None:
    migration = plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True)
    found = {
        status: {recipe.name.removeprefix(PREFIX) for recipe in migration.of(status)} for status in MigrationStatus
    }
    assert found[MigrationStatus.REWRITTEN] == {"sm110-armv8_2", "sm110-armv9", "sm120-avx512"}
    assert found[MigrationStatus.DELETED] == {"sm120-avx", "sm120-avx512-magma", "sm121-armv9-nightly"}
    assert len(found[MigrationStatus.CREATED]) == 56
    assert found[MigrationStatus.PRUNABLE] == set()
    assert migration.total == 59
    why = {recipe.name.removeprefix(PREFIX): recipe.reason for recipe in migration.recipes}
    assert "pin-wrong" in why["sm110-armv9"]
    assert why["sm120-avx512-magma"].startswith("variant-redundant")
    assert "foreign-pattern" in why["sm121-armv9-nightly"]


def test_nothing_is_deleted_unless_asked(catalog: Catalog, handmade: Path) -> None:
    before = names(handmade)
    migration = plan_migration(catalog, tree_at(handmade))
    assert len(migration.of(MigrationStatus.PRUNABLE)) == 1
    assert len(migration.of(MigrationStatus.UNLISTED)) == 2
    migration.apply()
    assert before <= names(handmade)
    plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True).apply()
    assert len(names(handmade)) == 59
    assert f"{PREFIX}sm120-avx512-magma" not in names(handmade)


def test_afterwards_the_recipes_pass_and_a_second_run_does_nothing(catalog: Catalog, handmade: Path) -> None:
    plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True).apply()
    (report,) = audit(catalog, handmade, use_nix=False)
    recipes = {finding.rule for finding in report.findings if finding.file.startswith(".flox/")}
    assert recipes == {"pin-hash"}
    again = plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True)
    assert not again.needed
    assert {recipe.status for recipe in again.recipes} == {MigrationStatus.KEPT}


def test_what_is_unique_and_right_is_kept(catalog: Catalog, handmade: Path) -> None:
    plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True).apply()
    pkgs = handmade / ".flox" / "pkgs"
    geforce = (pkgs / f"{PREFIX}sm120-avx512.nix").read_text()
    assert 'description = "PyTorch 2.10.0 for NVIDIA RTX 5090 (SM120, Blackwell) + AVX-512";' in geforce
    assert "Custom PyTorch build with targeted optimizations:" in geforce
    thor = (pkgs / f"{PREFIX}sm110-armv9.nix").read_text()
    assert '"-march=armv9-a+sve2"' in thor
    assert 'description = "PyTorch for NVIDIA DRIVE Thor (SM110) + ARMv9";' in thor
    assert "Graviton3+" not in thor  # it was wrong
    assert "550" not in thor  # and so was the driver


def test_the_report_counts(catalog: Catalog, handmade: Path) -> None:
    plan_migration(catalog, tree_at(handmade), prune=True, prune_unlisted=True).apply()
    report = (handmade / ".flox" / "MIGRATION.md").read_text()
    for line in ("| rewritten | 3 |", "| created | 56 |", "| deleted | 3 |", "| **in the tree now** | **59** |"):
        assert line in report
    assert f"- `{PREFIX}sm120-avx`: release cuda-13_0 does not list it" in report


def test_documents_scripts_and_strangers_are_not_touched(catalog: Catalog, handmade: Path) -> None:
    stranger = handmade / ".flox" / "pkgs" / "my-tool.nix"
    stranger.write_text("{ hello }: hello\n")
    beside = {path: path.read_bytes() for path in (handmade / "README.md", handmade / "check.sh", stranger)}
    migration = plan_migration(catalog, tree_at(handmade), prune=True)
    migration.apply()
    assert {path: path.read_bytes() for path in beside} == beside
    assert "my-tool" in {recipe.name for recipe in migration.of(MigrationStatus.KEPT)}


def test_a_dry_run_shows_the_diff_and_changes_nothing(handmade: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in handmade.rglob("*") if path.is_file()}
    assert main(["recipes", "migrate", str(handmade), "--dry-run", "--prune", "--prune-unlisted"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert '-  gpuArchSM = "sm_110";' in out
    assert '+  gpuArchSM = "11.0";' in out
    assert "3 rewritten, 56 created, 3 deleted; 59 recipes afterwards" in out
    assert {path: path.read_bytes() for path in handmade.rglob("*") if path.is_file()} == before


def test_scripts_can_read_it(handmade: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "migrate", str(handmade), "--json"]) == ExitCode.OK
    (tree,) = json.loads(capsys.readouterr().out)["trees"]
    assert tree["total"] == 62
    assert {recipe["status"] for recipe in tree["recipes"]} == {"rewritten", "created", "prunable", "unlisted"}


def test_what_was_changed_by_hand_in_a_generated_recipe_is_kept_if_it_is_right(
    catalog: Catalog, tmp_path: Path
) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0")
    path = tmp_path / ".flox" / "pkgs" / f"{PREFIX}sm90-avx512.nix"
    flags = " ".join(f'"{flag}"' for flag in (*catalog.isas["avx512"].compile_flags, "-mtune=sapphirerapids"))
    text = path.read_text().replace('cpu = "avx512";', f'cpu = "avx512";\n  cpuFlags = [ {flags} ];')
    path.write_text(
        text.replace('description = "PyTorch 2.10.0 for SM90', 'description = "Our PyTorch for the H100, SM90')
    )
    plan_migration(catalog, tree_at(tmp_path)).apply()
    text = path.read_text()
    assert '"-mtune=sapphirerapids"' in text
    assert 'description = "Our PyTorch for the H100, SM90' in text
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert [finding.rule for finding in report.findings] == []


def own_recipe(root: Path, release_cuda: str = "13_0") -> Path:
    """The hand-made recipe that is right, with things of its own."""
    path = root / ".flox" / "pkgs" / f"pytorch-python313-cuda{release_cuda}-sm120-avx512.nix"
    text = path.read_text()
    export = "export PYTORCH_BUILD_VERSION=2.10.0"
    assert export in text
    text = text.replace(
        export,
        f'export USE_MKLDNN=0\n      export OWN_FLAGS="a $HOME"\n      sed -i s/a/b/ setup.py\n      {export}',
    )
    text = text.replace("cudaSupport = true;\n", "cudaSupport = true;\n    MPISupport = true;\n", 1)
    path.write_text(text)
    return path


def test_own_exports_are_carried_over_and_the_rest_is_listed(catalog: Catalog, handmade: Path) -> None:
    path = own_recipe(handmade)
    plan_migration(catalog, tree_at(handmade)).apply()
    assert 'USE_MKLDNN = "0";' in path.read_text()
    report = (handmade / ".flox" / "MIGRATION.md").read_text()
    kept = (handmade / ".flox" / "torchtailor-kept.toml").read_text()
    for piece in ("OWN_FLAGS=a $HOME", "sed -i s/a/b/ setup.py", "MPISupport = true"):
        assert piece in report
        assert piece in kept
    (found,) = audit(catalog, handmade, use_nix=False)
    assert not [
        finding for finding in found.findings if finding.file.endswith(path.name) and finding.rule != "pin-hash"
    ]
    again = plan_migration(catalog, tree_at(handmade))
    assert not again.needed
    assert again.kept[path.stem].exports == {"USE_MKLDNN": "0"}


def test_a_description_of_another_version_is_not_kept(catalog: Catalog, handmade: Path) -> None:
    path = handmade / ".flox" / "pkgs" / f"{PREFIX}sm120-avx512.nix"
    text = path.read_text()
    path.write_text(text.replace('description = "PyTorch 2.10.0', 'description = "PyTorch 2.9.1'))
    plan_migration(catalog, tree_at(handmade)).apply()
    assert "PyTorch 2.9.1" not in path.read_text()
    assert "it mentions PyTorch 2.9.1" in (handmade / ".flox" / "MIGRATION.md").read_text()


def test_pruning_leaves_what_is_merely_not_in_the_matrix(catalog: Catalog, handmade: Path) -> None:
    pkgs = handmade / ".flox" / "pkgs"
    good = (pkgs / f"{PREFIX}sm120-avx512.nix").read_text()
    for cuda in ("12_8", "12_9", "13_1"):
        (pkgs / f"pytorch-python313-cuda{cuda}-sm90-avx512.nix").write_text(good.replace("13_0", cuda))
    (pkgs / "pytorch-python313-cuda13_0-sm121-avx512.nix").write_text(good)  # no x86_64 machine has this GPU
    (pkgs / "pytorch-python313-cuda12_1-sm90-avx2.nix").write_text("{ in }")  # not Nix: not ours to judge
    migration = plan_migration(catalog, tree_at(handmade), prune=True)
    deleted = {recipe.name.removeprefix(PREFIX) for recipe in migration.of(MigrationStatus.DELETED)}
    assert deleted == {"sm120-avx512-magma", "sm121-avx512"}
    unlisted = {recipe.name for recipe in migration.of(MigrationStatus.UNLISTED)}
    assert {f"pytorch-python313-cuda{cuda}-sm90-avx512" for cuda in ("12_8", "12_9", "13_1")} <= unlisted
    assert "pytorch-python313-cuda12_1-sm90-avx2" in {recipe.name for recipe in migration.of(MigrationStatus.KEPT)}
    migration = plan_migration(catalog, tree_at(handmade), prune_unlisted=True)
    assert f"{PREFIX}sm120-avx512-magma" not in {recipe.name for recipe in migration.of(MigrationStatus.DELETED)}


def test_exports_of_the_kept_file_must_be_plain(catalog: Catalog, handmade: Path) -> None:
    kept = handmade / ".flox" / "torchtailor-kept.toml"
    kept.write_text(f'["{PREFIX}sm90-avx512"]\nexports = {{ USE_X = "1; rm -rf /" }}\n')
    with pytest.raises(BadInputError, match="plain value"):
        plan_migration(catalog, tree_at(handmade))


def test_a_recipe_with_a_syntax_error_is_left_to_its_author(catalog: Catalog, handmade: Path) -> None:
    path = handmade / ".flox" / "pkgs" / f"{PREFIX}sm120-avx512.nix"
    path.write_text(text := path.read_text().replace("in\n", "in (\n", 1))
    migration = plan_migration(catalog, tree_at(handmade))
    (found,) = (recipe for recipe in migration.recipes if recipe.name == path.stem)
    assert (found.status, found.reason) == (MigrationStatus.KEPT, "not valid Nix")
    migration.apply()
    assert path.read_text() == text


def test_a_gpu_recipe_that_mentions_mkl_is_migrated_without_it(catalog: Catalog, handmade: Path) -> None:
    path = handmade / ".flox" / "pkgs" / f"{PREFIX}sm120-avx512.nix"
    path.write_text(path.read_text().replace("let\n", "let\n  blas = nixpkgs_pinned.mkl;\n", 1))
    migration = plan_migration(catalog, tree_at(handmade))
    (found,) = (recipe for recipe in migration.recipes if recipe.name == path.stem)
    assert found.status is MigrationStatus.REWRITTEN
    assert ".mkl" not in found.after


def test_a_plain_folder_of_recipes_gets_recipes_only(catalog: Catalog, handmade: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(handmade / ".flox" / "pkgs", plain)
    plan_migration(catalog, *find_trees(plain)).apply()
    assert not (plain / "default.nix").exists()
    assert not (plain / "env").exists()
    assert not plan_migration(catalog, *find_trees(plain)).needed
