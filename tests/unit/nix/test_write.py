"""Writing: nothing changes twice, nothing of others is touched, a change by hand is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nix.conftest import HASH, write_tree
from torchtailor.catalog import Catalog
from torchtailor.core.disk import write_output
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError, UsageError
from torchtailor.nix.audit import audit
from torchtailor.nix.pins import LOCK_NAME, KeptRow, kept_text, load_pins, lock_text, read_kept, read_lock
from torchtailor.nix.tree import MARKDOWN, FileOrigin, origin, stamp
from torchtailor.nix.write import Action, plan_trees, recipe_variants

NAME = "pytorch-python313-cuda13_0-sm90-avx512"


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(root.rglob("*")) if p.is_file()}


def test_three_releases_get_a_folder_each(catalog: Catalog, tmp_path: Path) -> None:
    for plan in plan_trees(catalog, tmp_path):
        plan.apply()
    counts = {path.name: len(list(path.glob(".flox/pkgs/*.nix"))) for path in tmp_path.iterdir()}
    assert counts == {"main": 44, "cuda-12_9": 50, "cuda-13_0": 59}


def test_a_rewrite_changes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", spark=True)
    before = snapshot(tmp_path)
    (plan,) = plan_trees(catalog, tmp_path, spark=True)  # the release is the one that is there
    assert {step.action for step in plan.steps} == {Action.UNCHANGED}
    plan.apply()
    assert snapshot(tmp_path) == before


def test_files_of_others_are_never_touched(catalog: Catalog, tmp_path: Path) -> None:
    mine = tmp_path / ".flox" / "pkgs" / f"{NAME}.nix"
    other = tmp_path / ".flox" / "pkgs" / "my-own.nix"
    manifest = tmp_path / ".flox" / "env" / "manifest.toml"
    for path in (mine, other, manifest):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# by hand\nversion = 1\n")
    for force in (False, True):
        (plan,) = plan_trees(catalog, tmp_path, releases=["cuda-13_0"], force=force)
        assert {step.path for step in plan.of(Action.KEEP_FOREIGN)} == {mine, manifest}
        plan.apply()
        for path in (mine, other, manifest):
            assert path.read_text() == "# by hand\nversion = 1\n"


def test_a_change_by_hand_is_kept_until_force(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-*")
    path = tmp_path / ".flox" / "pkgs" / f"{NAME}.nix"
    original = path.read_text()
    path.write_text(original.replace('cpu = "avx512"', 'cpu = "avx512bf16"'))
    (plan,) = plan_trees(catalog, tmp_path, globs=["sm90-*"])
    assert [step.path for step in plan.of(Action.KEEP_EDITED)] == [path]
    plan.apply()
    assert "avx512bf16" in path.read_text()
    (plan,) = plan_trees(catalog, tmp_path, globs=["sm90-*"], force=True)
    assert [step.path for step in plan.of(Action.UPDATE)] == [path]
    plan.apply()
    assert path.read_text() == original


def test_a_glob_writes_those_and_leaves_the_table_of_the_whole_alone(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0")
    readme = (tmp_path / ".flox" / "README.md").read_text()
    (plan,) = plan_trees(catalog, tmp_path, globs=["cpu-*"])
    assert len([step for step in plan.steps if step.path.parent.name == "pkgs"]) == 7
    plan.apply()
    assert (tmp_path / ".flox" / "README.md").read_text() == readme


def missing(catalog: Catalog, root: Path) -> int:
    (report,) = audit(catalog, root, use_nix=False)
    return len([finding for finding in report.findings if finding.rule == "variant-missing"])


@pytest.mark.parametrize("whole_first", [True, False])
def test_each_python_is_compared_with_what_was_asked_for_it(
    catalog: Catalog, tmp_path: Path, whole_first: bool
) -> None:
    calls = [([], ["3.13"]), (["sm90-avx512"], ["3.12"])]
    for globs, pythons in calls if whole_first else reversed(calls):
        for plan in plan_trees(catalog, tmp_path, releases=["main"], globs=globs, pythons=pythons):
            plan.apply()
    for plan in plan_trees(catalog, tmp_path, globs=["sm90-avx2"], pythons=["3.12", "3.13"]):
        plan.apply()
    assert missing(catalog, tmp_path) == 0
    pkgs = tmp_path / ".flox" / "pkgs"
    next(pkgs.glob("pytorch-python312-*-sm90-avx512.nix")).unlink()
    next(pkgs.glob("pytorch-python313-*-sm80-avx2.nix")).unlink()
    assert missing(catalog, tmp_path) == 2
    for plan in plan_trees(catalog, tmp_path, pythons=["3.12"]):
        plan.apply()
    assert missing(catalog, tmp_path) == 1


def test_hashes_of_the_lock_are_written_and_bad_ones_refused(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-avx512")
    assert f'sha256 = "{HASH}";' in (tmp_path / ".flox" / "pkgs" / f"{NAME}.nix").read_text()
    lock = tmp_path / ".flox" / LOCK_NAME
    for bad in ('[hashes]\n"x" = "sha1-abc"\n', "[hashes\n", "[wrong]\n", '[hashes]\n"x" = 3\n'):
        lock.write_text(bad)
        with pytest.raises(BadInputError, match=LOCK_NAME):
            plan_trees(catalog, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_output(tmp_path / "a" / "b.nix", b"")


def test_a_file_in_the_way_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where a folder should be")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_output(tmp_path / "a" / "b.nix", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_cannot_be_asked_for(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match=r"no recipes for release 2\.15"):
        recipe_variants(catalog, "2.15")
    with pytest.raises(UsageError, match=r"Python 3\.10"):
        recipe_variants(catalog, "cuda-13_0", pythons=["3.10"])
    with pytest.raises(NoMatchError, match="No variant"):
        plan_trees(catalog, tmp_path, globs=["sm99-*"])
    with pytest.raises(NoMatchError):
        plan_trees(catalog, tmp_path, releases=["nope"])


@given(st.text(), st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))
def test_a_stamp_knows_its_own_text_and_no_other(body: str, title: str) -> None:
    for text in (stamp(body, title), stamp(body, title, MARKDOWN)):
        assert origin(text) is FileOrigin.GENERATED
        assert origin(text + "x") is FileOrigin.EDITED
        assert origin("x" + text) in (FileOrigin.EDITED, FileOrigin.FOREIGN)


def test_no_stamp_is_foreign() -> None:
    assert origin("{ }: 1\n") is FileOrigin.FOREIGN
    assert origin("") is FileOrigin.FOREIGN


@given(
    st.dictionaries(
        st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1),
        st.builds(
            KeptRow,
            description=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
            long_description=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)).map(tuple),
            cpu_flags=st.lists(st.text("-mavx512=+", min_size=1)).map(tuple),
        ),
    )
)
def test_what_is_kept_survives_its_file(tmp_path_factory: pytest.TempPathFactory, kept: dict[str, KeptRow]) -> None:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "torchtailor-kept.toml").write_text(kept_text(kept), encoding="utf-8")
    assert read_kept(folder) == kept


def test_the_lock_survives_its_file(tmp_path: Path) -> None:
    hashes = {"nixpkgs/abc": HASH, "pytorch/v2.10.0": HASH}
    (tmp_path / LOCK_NAME).write_text(lock_text(hashes))
    assert read_lock(tmp_path) == hashes
    assert load_pins(tmp_path).lock == hashes


def test_a_tree_holds_one_release(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="holds the recipes of release cuda-13_0"):
        plan_trees(catalog, tmp_path, releases=["main"])
    assert snapshot(tmp_path) == before
    (plan,) = plan_trees(catalog, tmp_path, releases=["2.10.0", "cuda-13_0"])  # one release by two of its names
    assert {step.action for step in plan.steps} == {Action.UNCHANGED}
