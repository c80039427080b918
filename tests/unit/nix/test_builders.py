"""Trees whose recipes only call a file beside them, as `import ./lib/torch.nix { sm = "90"; }`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torchtailor.catalog import Catalog
from torchtailor.nix.audit import AuditReport, audit
from torchtailor.nix.migrate import plan_migration
from torchtailor.nix.nix import has_nix
from torchtailor.nix.tree import tree_at

KNOWN = "6a030d535719c5190187c4cec156f335e95e3211"
NOWHERE = "0123456789abcdef0123456789abcdef01234567"
NAME = "pytorch-python313-cuda12_9-sm90-avx512"
NIX = pytest.mark.skipif(not has_nix(), reason="needs nix-instantiate")

WRAPPER = """# PyTorch for Hopper (SM90) and AVX-512
{ pkgs ? import <nixpkgs> { } }:
import ./lib/torch.nix { capability = "9.0"; isa = "avx512"; }
"""
BUILDER = """{ capability, isa }:
let
  flags = (import ./flags.nix).${isa};
  nixpkgs_pinned = import (builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/REVISION.tar.gz";
    sha256 = "HASH";
  }) {
    config = { allowUnfree = true; cudaSupport = true; };
    overlays = [ (final: prev: { cudaPackages = final.cudaPackages_12_9; }) ];
  };
in
(nixpkgs_pinned.python313Packages.torch.override {
  cudaSupport = true;
  gpuTargets = [ capability ];
}).overrideAttrs (oldAttrs: {
  pname = "pytorch-python313-cuda12_9-sm${builtins.replaceStrings [ "." ] [ "" ] capability}-${isa}";
  preConfigure = (oldAttrs.preConfigure or "") + ''
    export CXXFLAGS="${toString flags} $CXXFLAGS"
  '';
  meta = oldAttrs.meta // { platforms = [ "x86_64-linux" ]; };
})
"""


def tree(root: Path, rev: str, *changes: tuple[str, str], wrapper: str = WRAPPER) -> Path:
    pkgs = root / ".flox" / "pkgs"
    (pkgs / "lib").mkdir(parents=True)
    (pkgs / f"{NAME}.nix").write_text(wrapper)
    (pkgs / "lib" / "flags.nix").write_text('{ avx512 = [ "-mavx512f" ]; }\n')
    text = BUILDER.replace("REVISION", rev).replace("HASH", f"sha256-{'B' * 43}=")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (pkgs / "lib" / "torch.nix").write_text(text)
    return root


def found(report: AuditReport) -> Mapping[str, str]:
    """By rule, the file; what concerns the release as a whole is left out."""
    whole = {"variant-missing", "release-unknown"}
    return {finding.rule: finding.file for finding in report.findings if finding.rule not in whole}


@NIX
def test_what_they_build_is_judged_as_nix_evaluates_it(catalog: Catalog, tmp_path: Path) -> None:
    (report,) = audit(catalog, tree(tmp_path, KNOWN))
    assert (report.evaluated, report.release, found(report)) == (1, "cuda-12_9", {})


@NIX
@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("arch-name", "gpuTargets = [ capability ]", 'gpuTargets = [ "8.0" ]'),
        ("pname", "pytorch-python313-cuda12_9-sm$", "pytorch-sm$"),
        ("platform", '"x86_64-linux"', '"aarch64-linux"'),
        ("python-name", "python313Packages", "python312Packages"),
        ("cuda-name", "cudaPackages_12_9", "cudaPackages_12_8"),
    ],
)
def test_what_is_wrong_is_found_by_evaluation(catalog: Catalog, tmp_path: Path, rule: str, old: str, new: str) -> None:
    (report,) = audit(catalog, tree(tmp_path, KNOWN, (old, new)))
    assert found(report) == {rule: f".flox/pkgs/{NAME}.nix"}


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("jobs-overwritten", "pname =", 'ninjaFlags = [ "-j32" ];\n  pname ='),
        ("flags-unreached", "pname =", 'cmakeFlags = [ "-DUSE_X=1" ];\n  pname ='),
        ("pin-hash", f'sha256 = "sha256-{"B" * 43}=";', ""),
    ],
)
def test_the_file_is_read_once(catalog: Catalog, tmp_path: Path, rule: str, old: str, new: str) -> None:
    (report,) = audit(catalog, tree(tmp_path, KNOWN, (old, new)), use_nix=False)
    assert found(report) == {rule: ".flox/pkgs/lib/torch.nix"}


def test_without_evaluation_nothing_is_said_of_what_the_text_does_not_show(catalog: Catalog, tmp_path: Path) -> None:
    """130 errors of one public tree were of this kind: no pname, no architecture, no pin, no CPU flags."""
    (report,) = audit(catalog, tree(tmp_path, NOWHERE))
    assert (report.errors, report.evaluated, report.release) == (0, 0, "")
    assert found(report) == {"pin-unknown": ".flox/pkgs/lib/torch.nix"}


@NIX
def test_what_another_repository_makes_is_not_an_error_of_the_recipe(catalog: Catalog, tmp_path: Path) -> None:
    other = 'import "${builtins.fetchTarball "https://example.org/other.tar.gz"}/torch.nix"'
    for fetch in ("builtins.fetchTarball", "builtins.fetchGit", "builtins.getFlake"):
        wrapper = WRAPPER.replace("import ./lib/torch.nix", other.replace("builtins.fetchTarball", fetch))
        (report,) = audit(catalog, tree(tmp_path / fetch, KNOWN, wrapper=wrapper))
        assert report.evaluated == 0
        assert "evaluation" not in found(report), fetch
        (text,) = (finding.message for finding in report.findings if finding.rule == "pin-unknown")
        assert text == "https://example.org/other.tar.gz is not fetched: 1 recipes that need it were not evaluated"


def test_migration_keeps_the_pin_of_the_file_and_lists_what_it_does(catalog: Catalog, tmp_path: Path) -> None:
    migration = plan_migration(catalog, tree_at(tree(tmp_path, NOWHERE)), release="cuda-12_9")
    assert migration.pins == {NOWHERE: 50}
    assert migration.kept[NAME].not_carried == ("what torch.nix does, which it calls",)
    assert f"`{NAME}`: it calls torch.nix, which was not evaluated" in migration.report()
    computed = tree(tmp_path / "computed", KNOWN, (KNOWN, "${rev}"))
    migration = plan_migration(catalog, tree_at(computed), release="cuda-12_9")
    assert f"nixpkgs: not named in torch.nix, now {KNOWN}" in migration.report()
