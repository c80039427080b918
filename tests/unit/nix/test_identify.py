"""Which release a hand-written tree is of, and what is said of pins that are not known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.nix.conftest import write_tree
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode, UsageError
from torchtailor.nix.audit import audit, open_tree
from torchtailor.nix.evaluate import Failed, evaluate
from torchtailor.nix.migrate import plan_migration
from torchtailor.nix.nix import has_nix
from torchtailor.nix.pins import Pins, load_pins
from torchtailor.nix.report import audit_lines
from torchtailor.nix.tree import tree_at

NEW = "6a030d535719c5190187c4cec156f335e95e3211"
OLD = "fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3"
NOWHERE = "0123456789abcdef0123456789abcdef01234567"
NIX = pytest.mark.skipif(not has_nix(), reason="needs nix-instantiate")

PLAIN = """{{ pkgs ? import <nixpkgs> {{ }} }}:
let
  nixpkgs_pinned = import (builtins.fetchTarball {{
    url = "https://github.com/NixOS/nixpkgs/archive/{rev}.tar.gz";
  }}) {{
    config = {{ allowUnfree = true; allowBroken = true; cudaSupport = true; }};
    overlays = [ (final: prev: {{ cudaPackages = final.cudaPackages_{cuda}; }}) ];
  }};
  gpuArchSM = "9.0";
  cpuFlags = [ "-mavx512f" "-mavx512dq" "-mavx512vl" "-mavx512bw" "-mfma" ];
in
(nixpkgs_pinned.python313Packages.torch.override {{
  cudaSupport = true;
  gpuTargets = [ gpuArchSM ];
}}).overrideAttrs (oldAttrs: {{
  pname = "{name}";
  {more}
  meta = oldAttrs.meta // {{
    description = "PyTorch for H100";
    platforms = [ "x86_64-linux" ];
  }};
}})
"""


def add(root: Path, cuda: str, *, rev: str = NEW, more: str = "", isa: str = "avx512") -> Path:
    name = f"pytorch-python313-cuda{cuda}-sm90-{isa}"
    path = root / ".flox" / "pkgs" / f"{name}.nix"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLAIN.format(rev=rev, cuda=cuda, name=name, more=more))
    return path


def release(catalog: Catalog, root: Path) -> tuple[str, bool]:
    found = open_tree(catalog, tree_at(root), with_nix=False).identified
    return found.release.recipe_name, found.certain


def test_the_version_decides_and_not_the_cuda_in_the_names(catalog: Catalog, tmp_path: Path) -> None:
    """nixpkgs' own 2.9.1 with CUDA 13.0: release cuda-12_9, although cuda-13_0 has the CUDA."""
    add(tmp_path, "13_0")
    assert release(catalog, tmp_path) == ("cuda-12_9", True)
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert not {"overlay-torch", "pin-wrong", "pname"} & {finding.rule for finding in report.findings}
    assert plan_migration(catalog, tree_at(tmp_path)).release == "cuda-12_9"


@pytest.mark.parametrize("more", ['version = "2.10.0";', 'version = "${"2.10.0"}";'])
def test_a_version_that_the_recipe_sets_itself_counts(catalog: Catalog, tmp_path: Path, more: str) -> None:
    add(tmp_path, "12_9", more=more)
    assert release(catalog, tmp_path) == ("cuda-13_0", True)


def test_a_version_that_no_release_has_is_refused_without_a_release(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = add(tmp_path, "12_9", more='version = "2.9.0";')
    before = path.read_text()
    with pytest.raises(UsageError, match=r"2\.9\.0 \(1 recipe\), which no release has"):
        plan_migration(catalog, tree_at(tmp_path))
    assert main(["recipes", "migrate", str(tmp_path)]) == ExitCode.USAGE
    assert "--release" in capsys.readouterr().err
    assert path.read_text() == before
    assert not (tmp_path / ".flox" / "MIGRATION.md").exists()
    assert plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9").release == "cuda-12_9"


def test_several_versions_are_refused_too(catalog: Catalog, tmp_path: Path) -> None:
    add(tmp_path, "12_9")
    add(tmp_path, "13_0", more='version = "2.10.0";')
    with pytest.raises(UsageError, match="several versions"):
        plan_migration(catalog, tree_at(tmp_path))


def test_an_unknown_pin_is_said_once_and_nothing_is_concluded_from_it(catalog: Catalog, tmp_path: Path) -> None:
    for isa in ("avx2", "avx512", "avx512bf16"):
        add(tmp_path, "13_1", rev=NOWHERE, isa=isa)
    (report,) = audit(catalog, tmp_path, use_nix=has_nix())
    found = [finding for finding in report.findings if finding.rule == "pin-unknown"]
    assert len(found) == 1
    assert "3 recipes" in found[0].message
    needs_facts = {"evaluation", "broken-refused", "overlay-torch", "overlay-magma", "pin-wrong", "patches-dropped"}
    assert not needs_facts & {finding.rule for finding in report.findings}
    with pytest.raises(UsageError, match="not known: nixpkgs 0123456789ab is unknown"):
        plan_migration(catalog, tree_at(tmp_path))


def test_several_pins_are_one_finding(catalog: Catalog, tmp_path: Path) -> None:
    for isa in ("avx2", "avx512", "avx512bf16"):
        add(tmp_path, "12_9", isa=isa)
        add(tmp_path, "12_8", isa=isa, rev=OLD)
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert [finding.rule for finding in report.findings].count("pins-several") == 1


def test_a_subset_that_was_written_misses_nothing(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-*", "cpu-avx2")
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert report.findings == ()
    write_tree(catalog, tmp_path, "cuda-13_0", "sm120-avx512")  # a second call adds to it
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert report.findings == ()
    (tmp_path / ".flox" / "pkgs" / "pytorch-python313-cpu-avx2.nix").unlink()
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert {finding.rule for finding in report.findings} == {"variant-missing", "table-stale"}


def test_a_hand_written_subset_is_one_remark(catalog: Catalog, tmp_path: Path) -> None:
    add(tmp_path, "12_9")
    (report,) = audit(catalog, tmp_path, use_nix=False)
    missing = [finding for finding in report.findings if finding.rule == "variant-missing"]
    assert len(missing) == 1
    assert "49 variants" in missing[0].message


@NIX
@pytest.mark.parametrize(("rev", "cuda"), [(OLD, "13"), (OLD, "13_0"), (NEW, "13_1")])
def test_what_a_pin_does_not_have_does_not_evaluate(pins: Pins, tmp_path: Path, rev: str, cuda: str) -> None:
    """As the real nixpkgs at these pins."""
    path = add(tmp_path, cuda, rev=rev)
    outcome = evaluate({path: "x86_64-linux"}, pins)[path]
    assert isinstance(outcome, Failed)
    assert f"cudaPackages_{cuda}" in outcome.message


@NIX
def test_an_abbreviated_revision_is_the_known_one(tmp_path: Path) -> None:
    path = add(tmp_path, "12_9", rev=NEW[:12])
    assert not isinstance(evaluate({path: "x86_64-linux"}, load_pins())[path], Failed)


@NIX
@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
def test_what_is_built_on_torch_evaluates(tmp_path: Path, name: str) -> None:
    path = add(tmp_path, "12_9")
    text = path.read_text().replace(
        "in\n(nixpkgs_pinned.python313Packages.torch", "  torch = (nixpkgs_pinned.python313Packages.torch"
    )
    path.write_text(text.rstrip() + f";\nin\n(nixpkgs_pinned.python313Packages.{name}.override {{ inherit torch; }})\n")
    outcome = evaluate({path: "x86_64-linux"}, load_pins())[path]
    assert not isinstance(outcome, Failed), outcome
    assert outcome.on == "pytorch-python313-cuda12_9-sm90-avx512"


def test_the_summary_says_what_was_done(catalog: Catalog, tmp_path: Path) -> None:
    """Nothing is evaluated at an unknown pin, and a guessed release is not named as if it were known."""
    path = tmp_path / ".flox" / "pkgs" / "pytorch-python313-cuda12_9-sm90-avx512.nix"
    path.parent.mkdir(parents=True)
    url = f"https://github.com/NixOS/nixpkgs/archive/{'0' * 40}.tar.gz"
    path.write_text(f'(import (builtins.fetchTarball "{url}") {{ }}).python313Packages.torch.override {{ }}\n')
    (report,) = audit(catalog, tmp_path)
    assert (report.evaluated, report.release) == (0, "")
    assert "no known release, 1 recipe read, none evaluated with Nix" in list(audit_lines([report]))[-1][1]


BANNER = "# For the cluster in Lyon; ask Ada before you change the pin.\n# Needs CUDA 13.0 everywhere.\n\n"


def test_a_pin_that_nobody_here_knows_is_kept(catalog: Catalog, tmp_path: Path) -> None:
    """Someone chose it: all recipes of the tree keep it, the missing ones too, and it is not called checked."""
    path = add(tmp_path, "12_9", rev=NOWHERE)
    path.write_text(BANNER + path.read_text().replace('.tar.gz";', f'.tar.gz"; sha256 = "sha256-{"B" * 43}=";'))
    migration = plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9")
    assert f"50 recipes keep nixpkgs {NOWHERE}, which the catalog does not know" in migration.report()
    assert migration.pins == {NOWHERE: 50}
    migration.apply()
    texts = {
        file.name: file.read_text() for file in (tmp_path / ".flox").rglob("*.nix") if file.parent.name != "torchtailor"
    }
    assert f'sha256 = "sha256-{"B" * 43}=";' in texts["default.nix"]
    assert not any(NEW in text for text in texts.values())
    written = texts[path.name]
    assert NOWHERE in written
    assert "torchtailor has not checked it" in written
    assert "# For the cluster in Lyon; ask Ada before you change the pin." in written
    assert "Needs CUDA 13.0" not in written  # it is compiled with 12.9
    assert "line 2: the comment 'Needs CUDA 13.0 everywhere.' (claim-cuda)" in migration.report()
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert {finding.rule for finding in report.findings} == {"pin-unknown"}
    assert not plan_migration(catalog, tree_at(tmp_path)).needed


def test_it_is_replaced_when_that_is_asked_also_later(catalog: Catalog, tmp_path: Path) -> None:
    add(tmp_path, "12_9", rev=NOWHERE)
    migration = plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9", replace_pin=True)
    assert f"nixpkgs {NOWHERE}, replaced by {NEW}" in migration.report()
    assert migration.pins == {NEW: 50}
    plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9").apply()
    migration = plan_migration(catalog, tree_at(tmp_path), replace_pin=True)
    assert f"nixpkgs {NOWHERE}, replaced by {NEW}" in migration.report()
    migration.apply()
    files = (tmp_path / ".flox").rglob("*.nix")
    assert not any(NOWHERE in file.read_text() for file in files)


def test_a_recipe_that_was_changed_by_hand_keeps_what_was_kept(catalog: Catalog, tmp_path: Path) -> None:
    path = add(tmp_path, "12_9", rev=NOWHERE)
    path.write_text(BANNER + path.read_text())
    plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9").apply()
    before = path.read_text()
    path.write_text(before.replace('gpuArchSM = "9.0"', 'gpuArchSM = "8.0"'))
    plan_migration(catalog, tree_at(tmp_path)).apply()
    assert path.read_text() == before


def test_several_pins_of_a_tree_are_said(catalog: Catalog, tmp_path: Path) -> None:
    add(tmp_path, "12_9", rev=NOWHERE)
    add(tmp_path, "12_9", rev=NOWHERE, isa="avx")  # which the release does not have, so that it stays as it is
    migration = plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9", replace_pin=True)
    assert f"The tree pins several nixpkgs: {NOWHERE[:12]} (1 recipe), {NEW[:12]} (50 recipes)." in migration.report()


def test_a_nixpkgs_of_no_revision_is_listed(catalog: Catalog, tmp_path: Path) -> None:
    add(tmp_path, "12_9", rev="nixos-unstable")
    migration = plan_migration(catalog, tree_at(tmp_path), release="cuda-12_9")
    assert f"nixpkgs: not pinned to a revision, now {NEW}" in migration.report()


@pytest.mark.parametrize(
    "row", ['nixpkgs = "main"', "nixpkgs_sha256 = 'x\"; y'", 'comments = ["a\\nbuiltins.abort"]', "nixpkgs = 3"]
)
def test_what_was_kept_must_be_plain(tmp_path: Path, row: str) -> None:
    """It becomes part of Nix files."""
    (tmp_path / "torchtailor-kept.toml").write_text(f'["pytorch-python313-cuda12_9-sm90-avx512"]\n{row}\n')
    with pytest.raises(BadInputError, match="is not valid"):
        load_pins(tmp_path)


@pytest.mark.parametrize("command", ["build", "publish", "recipes write"])
def test_a_dry_run_is_also_n(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*command.split(), "--help"])
    assert re.search(r"--dry-run\s+-n\b|-n,?\s+--dry-run", capsys.readouterr().out)
