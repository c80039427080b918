"""The audit of whole trees: a hand-made one like the seeds', ours, and what stands beside recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.nix.conftest import HANDMADE, write_tree
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode, NoMatchError
from torchtailor.nix.audit import audit, audit_context, open_tree
from torchtailor.nix.migrate import plan_migration
from torchtailor.nix.rules import RULES
from torchtailor.nix.tree import find_trees, tree_at

REPO = Path(__file__).parents[3]


def rules_of(catalog: Catalog, root: Path) -> dict[str, set[str]]:
    (report,) = audit(catalog, root, use_nix=False)
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(Path(finding.file).name, set()).add(finding.rule)
    return found


def test_the_seeds_faults_are_found_in_their_files(catalog: Catalog) -> None:
    found = rules_of(catalog, HANDMADE)
    old = {
        "pin-wrong",
        "pin-hash",
        "overlay-cuda",
        "overlay-magma",
        "overlay-torch",
        "attribute-pytorch",
        "alias-python",
        "cccl-links",
        "arch-spelling",
        "driver-floor",
    }
    prefix = "pytorch-python313-cuda13_0-"
    assert old <= found[f"{prefix}sm110-armv8_2.nix"]
    assert old | {"claim-cpu"} <= found[f"{prefix}sm110-armv9.nix"]
    assert old | {"must-be-off", "variant-unlisted"} <= found[f"{prefix}sm120-avx.nix"]
    assert {"variant-redundant"} <= found[f"{prefix}sm120-avx512-magma.nix"]
    nightly = {"foreign-pattern", "pin-missing", "result-link", "magma-off", "hash-placeholder"}
    assert nightly <= found[f"{prefix}sm121-armv9-nightly.nix"]
    # The one that the seeds call correct has the right pin and overlays, and flags that reach nothing.
    correct = found[f"{prefix}sm120-avx512.nix"]
    assert {"flags-unreached", "jobs-overwritten", "alias-cuda", "alias-python"} <= correct
    assert "pname" in correct  # pytorch210-..., which is not the file name
    assert not correct & {"pin-wrong", "overlay-cuda", "overlay-magma", "overlay-torch", "toolkit-stub"}
    assert found["README.md"] == {"document-recipe", "document-elsewhere"}
    assert found["check.sh"] == {"script-exit", "script-glob"}


def test_our_own_trees_pass(catalog: Catalog, tmp_path: Path) -> None:
    for release in ("main", "cuda-12_9", "cuda-13_0"):
        write_tree(catalog, tmp_path / release, release, spark=True)
    reports = audit(catalog, tmp_path, use_nix=False)
    assert [(report.release, report.recipes) for report in reports] == [
        ("cuda-12_9", 50),
        ("cuda-13_0", 65),
        ("main", 44),
    ]
    assert [report.findings for report in reports] == [(), (), ()]


def test_the_repositorys_recipes_pass(catalog: Catalog) -> None:
    (report,) = audit(catalog, REPO, use_nix=False)
    assert report.release == "cuda-13_0"
    assert report.recipes == 59
    recipes = [finding for finding in report.findings if finding.file.startswith(".flox/")]
    assert {finding.rule for finding in recipes} <= {"pin-hash"}


def test_missing_recipes_are_named(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0")
    gone = tmp_path / ".flox" / "pkgs" / "pytorch-python313-cpu-armv9.nix"
    gone.unlink()
    (report,) = audit(catalog, tmp_path, use_nix=False)
    found = {(item.rule, Path(item.file).name) for item in report.findings}
    assert found == {("variant-missing", gone.name), ("table-stale", "README.md")}


def test_several_pins_in_one_release(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-avx*")
    path = tmp_path / ".flox" / "pkgs" / "pytorch-python313-cuda13_0-sm90-avx512.nix"
    path.write_text(path.read_text().replace("6a030d535719c5190187c4cec156f335e95e3211", "a" * 40))
    context = open_tree(catalog, tree_at(tmp_path), with_nix=False)
    hits = [finding for finding in audit_context(context) if finding.rule == "pins-several"]
    assert [Path(hit.file).name for hit in hits] == [path.name]


def test_the_manifest_must_not_build_a_recipes_name(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-avx512")
    manifest = tmp_path / ".flox" / "env" / "manifest.toml"
    name = "pytorch-python313-cuda13_0-sm90-avx512"
    manifest.write_text(f'version = 1\n# {name}\n[build.{name}]\ncommand = "true"\n')
    context = open_tree(catalog, tree_at(tmp_path), release="cuda-13_0", with_nix=False)
    hits = [finding for finding in audit_context(context) if finding.rule == "manifest-clash"]
    assert [hit.line for hit in hits] == [3]
    manifest.write_text("version = [\n")
    hits = [finding for finding in audit_context(context) if finding.rule == "manifest-clash"]
    assert "not TOML" in hits[0].message


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("for f in .flox/pkgs/*.nix; do\n  grep -q x $f || { echo BROKEN $f; exit 1; }\ndone\n", set()),
        ("set -e\nfor f in .flox/pkgs/*.nix; do\n  grep -q x $f || echo BROKEN $f\ndone\n", set()),
        ("for f in .flox/pkgs/*.nix; do\n  grep -q x $f || echo BROKEN $f # exit 1\ndone\n", {"script-exit"}),
        ("for f in .flox/pkgs/vision-*.nix; do\n  grep -q x $f || exit 1\ndone\n", {"script-glob"}),
        ("# for f in .flox/pkgs/vision-*.nix\necho hello\n", set()),
    ],
)
def test_scripts_that_check_nothing(catalog: Catalog, tmp_path: Path, script: str, rules: set[str]) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "cpu-*")
    (tmp_path / "check.sh").write_text(script)
    context = open_tree(catalog, tree_at(tmp_path), release="cuda-13_0", with_nix=False)
    found = {name for name in ("script-exit", "script-glob") if list(RULES[name].on_tree(context))}  # type: ignore[misc]
    assert found == rules


@pytest.mark.parametrize("folder", [".flox", ".flox/pkgs"])
def test_a_folder_inside_a_tree_is_the_tree(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Its default.nix is no recipe, and its table belongs to the recipes in pkgs."""
    write_tree(catalog, tmp_path, "cuda-13_0", "cpu-*")
    monkeypatch.chdir(tmp_path / folder)
    for place in (tmp_path / folder, Path()):
        (found,) = find_trees(place)
        assert found.root == tmp_path
        assert found.recipes.keys() == find_trees(tmp_path)[0].recipes.keys()


def test_what_cannot_be_audited(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="not a folder"):
        find_trees(tmp_path / "nope")
    with pytest.raises(NoMatchError, match="no recipes"):
        find_trees(tmp_path)


@pytest.mark.parametrize(
    ("name", "spoil", "line", "said"),
    [
        ("notes", lambda path: path.write_bytes(b"\xff\xfe{ }: 1"), 1, "not UTF-8 text: byte 0xff at position 0"),
        (
            "pytorch-python313-cuda13_0-sm90-avx2",
            lambda path: path.write_bytes(b"{ }:\n# caf\xe9\n1"),
            2,
            "not UTF-8 text: byte 0xe9 at position 10",
        ),
        ("cudnn", lambda path: path.symlink_to("gone"), 1, "a link to a file that does not exist"),
    ],
    ids=["not text", "Latin-1", "link to nothing"],
)
def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_goes_on(
    catalog: Catalog, tmp_path: Path, name: str, spoil: Callable[[Path], object], line: int, said: str
) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-*")
    pkgs = tmp_path / ".flox" / "pkgs"
    edited = pkgs / "pytorch-python313-cuda13_0-sm90-avx512.nix"
    edited.write_text(edited.read_text().replace('gpuArchSM = "9.0"', 'gpuArchSM = "8.0"'))
    rest = {file: rules for file, rules in rules_of(catalog, tmp_path).items() if file != f"{name}.nix"}
    assert {"edited", "arch-list"} & rest[edited.name]
    (pkgs / f"{name}.nix").unlink(missing_ok=True)
    spoil(pkgs / f"{name}.nix")
    assert {file: rules for file, rules in rules_of(catalog, tmp_path).items() if file != f"{name}.nix"} == rest
    (report,) = audit(catalog, tmp_path, use_nix=False)
    found = [item for item in report.findings if item.file == f".flox/pkgs/{name}.nix" and item.rule != "file-unknown"]
    assert [(item.rule, item.line, item.message) for item in found] == [("unreadable", line, f"it is {said}")]
    assert not report.passed()
    with pytest.raises(BadInputError, match=rf"{name}\.nix is {said[:5]}"):  # nothing changes what it cannot read
        plan_migration(catalog, tree_at(tmp_path))


def test_a_plain_folder_of_recipes_is_a_tree_too(catalog: Catalog, tmp_path: Path) -> None:
    source = HANDMADE / ".flox" / "pkgs"
    for path in source.glob("*sm110*.nix"):
        shutil.copy(path, tmp_path)
    folder = tmp_path / "cudnn-13_0"
    folder.mkdir()
    (folder / "default.nix").write_text("{ cudaPackages_13 }: cudaPackages_13.cudnn\n")
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert report.recipes == 3
    assert {"arch-spelling", "release-unknown"} <= {finding.rule for finding in report.findings}


def test_the_command_says_it_in_three_formats(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["recipes", "check", str(HANDMADE), "--no-nix"]
    assert main(arguments) == ExitCode.CHECK_FAILED
    text = capsys.readouterr().out
    assert ".flox/pkgs/pytorch-python313-cuda13_0-sm110-armv9.nix:9: error: nixpkgs is pinned to fe5e41d7ffc0" in text
    assert "How to fix:" in text
    assert main([*arguments, "--json"]) == ExitCode.CHECK_FAILED
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    assert set(document["trees"][0]["findings"][0]) == {"rule", "severity", "file", "line", "message", "fix"}
    assert main([*arguments, "--github"]) == ExitCode.CHECK_FAILED
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("::error file=", "::warning file=", "::notice file=")) for line in lines)


def test_warnings_fail_only_a_strict_audit(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", locked=False)
    assert main(["recipes", "check", str(tmp_path), "--no-nix"]) == ExitCode.OK
    assert main(["recipes", "check", str(tmp_path), "--no-nix", "--strict"]) == ExitCode.CHECK_FAILED
    assert "pin-hash" in capsys.readouterr().out


def test_a_rule_can_be_left_out_if_it_exists(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-*")
    (tmp_path / ".flox" / "pkgs" / "pytorch-python313-cuda13_0-sm90-avx2.nix").unlink()
    arguments = ["recipes", "check", str(tmp_path), "--no-nix"]
    assert main(arguments) == ExitCode.CHECK_FAILED
    assert main([*arguments, "--ignore", "variant-missing"]) == ExitCode.OK
    assert main([*arguments, "--ignore", "no-such-rule"]) == ExitCode.USAGE
    assert "no-such-rule" in capsys.readouterr().err


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "rules", "--json"]) == ExitCode.OK
    assert {row["rule"] for row in json.loads(capsys.readouterr().out)["rules"]} == set(RULES)
    assert main(["recipes", "rules"]) == ExitCode.OK
    assert "variant-missing" in capsys.readouterr().out


def test_a_tree_of_a_cuda_that_no_release_has_is_audited_by_its_names(catalog: Catalog, tmp_path: Path) -> None:
    """As in the original recipes: CUDA 13.0 mentioned in a 13_1 file, B200 under SM103."""
    good = (HANDMADE / ".flox" / "pkgs" / "pytorch-python313-cuda13_0-sm120-avx512.nix").read_text()
    text = (
        good.replace("cuda13_0", "cuda13_1").replace("12.0", "10.3").replace("SM120", "SM103").replace("sm120", "sm103")
    )
    text = text.replace("cudaPackages_13;", "cudaPackages_13_1;").replace("RTX 5090", "B200")
    (tmp_path / "pytorch-python313-cuda13_1-sm103-avx512.nix").write_text(text)
    found = rules_of(catalog, tmp_path)["pytorch-python313-cuda13_1-sm103-avx512.nix"]
    assert {"claim-cuda", "claim-product", "flags-unreached", "variant-unlisted", "pname"} <= found
    assert not found & {"pin-wrong", "cuda-name", "arch-name", "alias-cuda", "file-unknown", "claim-gpu"}


def test_a_table_changed_by_hand_is_stale(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0")
    readme = tmp_path / ".flox" / "README.md"
    readme.write_text(readme.read_text() + "more\n")
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert [(item.rule, item.line) for item in report.findings] == [("table-stale", 3)]
