"""torchvision and torchaudio built on the tailored torch, Python 3.14, and the attributes of a tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.nix.conftest import HASH, write_tree
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, NoMatchError, UsageError
from torchtailor.nix.audit import audit
from torchtailor.nix.evaluate import Evaluated, evaluate
from torchtailor.nix.nix import has_nix
from torchtailor.nix.pins import LOCK_NAME, load_pins, lock_text
from torchtailor.nix.recipe import RecipeName
from torchtailor.nix.write import plan_trees, recipe_variants

BOTH = ("torchvision", "torchaudio")
NIX = pytest.mark.skipif(not has_nix(), reason="needs nix-instantiate")


def write(catalog: Catalog, root: Path, release: str, *globs: str, python: str = "3.13") -> Path:
    write_tree(catalog, root, release, *globs)  # for its lock
    lock = root / ".flox" / LOCK_NAME
    lock.write_text(lock_text({row.key: HASH for row in load_pins().file.nixpkgs} | {"torchaudio/v2.10.0": HASH}))
    for plan in plan_trees(catalog, root, releases=[release], globs=globs, siblings=BOTH, pythons=[python]):
        plan.apply()
    return root / ".flox" / "pkgs"


@NIX
@pytest.mark.parametrize(
    ("release", "glob", "versions"),
    [
        ("main", "sm90-avx512", {"torchvision": "0.23.0", "torchaudio": "2.8.0"}),
        ("cuda-12_9", "sm61-avx", {"torchvision": "0.24.0", "torchaudio": "2.9.0"}),
        ("cuda-13_0", "sm110-armv9", {"torchvision": "0.25.0", "torchaudio": "2.10.0"}),
        ("cuda-13_0", "cpu-avx512", {"torchvision": "0.25.0", "torchaudio": "2.10.0"}),
    ],
)
def test_they_are_built_on_the_torch_of_their_name(
    catalog: Catalog, tmp_path: Path, release: str, glob: str, versions: dict[str, str]
) -> None:
    pkgs = write(catalog, tmp_path, release, glob)
    (variant,) = recipe_variants(catalog, release, [glob])
    for name, version in versions.items():
        path = pkgs / f"{name}{variant.name.removeprefix('pytorch')}.nix"
        found = evaluate({path: variant.platform}, load_pins())[path]
        assert isinstance(found, Evaluated), found
        assert (found.pname, found.version, found.on) == (path.stem, version, variant.name)
        assert found.name == f"{path.stem}-{version}"
        assert found.platforms == (variant.platform,)
        assert (found.arch_list or "") == (str(variant.gpu.capability) if variant.gpu else "")
        assert all(flag in found.pre_configure for flag in variant.isa.compile_flags)
        assert found.changelog.endswith(f"/v{version}")
    (report,) = audit(catalog, tmp_path, use_nix=True)
    assert report.findings == ()


def test_a_later_write_keeps_them_and_a_missing_one_is_found(catalog: Catalog, tmp_path: Path) -> None:
    pkgs = write(catalog, tmp_path, "cuda-13_0", "sm90-avx512")
    for plan in plan_trees(catalog, tmp_path, globs=["sm90-avx2"]):
        plan.apply()
    gone = pkgs / "torchvision-python313-cuda13_0-sm90-avx2.nix"
    assert gone.exists()
    gone.unlink()
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert [(item.rule, Path(item.file).name) for item in report.findings] == [("variant-missing", gone.name)]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (
            "./pytorch-python313-cuda13_0-sm90-avx512.nix",
            "./pytorch-python313-cuda13_0-sm80-avx512.nix",
            "sibling-torch",
        ),
        ('name = "torchvision-', 'name = "vision-', "pname"),
        ('gpuArchSM = "9.0"', 'gpuArchSM = "8.0"', "row-name"),
    ],
)
def test_a_broken_sibling_is_found(catalog: Catalog, tmp_path: Path, old: str, new: str, rule: str) -> None:
    pkgs = write(catalog, tmp_path, "cuda-13_0", "sm90-avx512", "sm80-avx512")
    path = pkgs / "torchvision-python313-cuda13_0-sm90-avx512.nix"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    (report,) = audit(catalog, tmp_path, use_nix=False)
    assert {item.rule for item in report.findings if item.file.endswith(path.name)} == {rule, "edited"}


def test_an_unknown_sibling_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="no recipes of 'torchtext'"):
        plan_trees(catalog, tmp_path, releases=["main"], globs=["cpu-avx2"], siblings=["torchtext"])
    assert main(["recipes", "write", str(tmp_path), "--release", "main", "--nvidia"]) == ExitCode.USAGE


def test_names_of_siblings_are_read() -> None:
    found = RecipeName.parse("torchvision-python313-cuda13_0-sm90-avx512")
    assert found is not None
    assert (found.package, found.base) == ("torchvision", "pytorch-python313-cuda13_0-sm90-avx512")
    assert RecipeName.parse("torchtext-python313-cpu-avx2") is None


def test_python_3_14_where_the_release_and_the_pin_have_it(catalog: Catalog, tmp_path: Path) -> None:
    assert len(recipe_variants(catalog, "cuda-13_0", pythons=["3.14"])) == 59
    assert len(recipe_variants(catalog, "cuda-12_9", pythons=["3.14"])) == 50
    with pytest.raises(UsageError, match=r"no recipes for Python 3\.14"):
        recipe_variants(catalog, "main", pythons=["3.14"])
    pkgs = write(catalog, tmp_path, "cuda-13_0", "cpu-avx512", python="3.14")
    assert 'python = "3.14";' in (pkgs / "pytorch-python314-cpu-avx512.nix").read_text()


def test_the_attributes_name_every_recipe_of_a_platform(catalog: Catalog, tmp_path: Path) -> None:
    pkgs = write(catalog, tmp_path, "cuda-13_0", "sm90-*")
    text = (tmp_path / ".flox" / "default.nix").read_text()
    for path in pkgs.glob("*.nix"):
        assert f'"{path.stem}"' in text
    arm = text[text.index("aarch64-linux = [") : text.index("]", text.index("aarch64-linux = ["))]
    assert "-avx" not in arm


def test_variants_written_before_get_the_siblings_too(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", "sm90-avx512")
    for plan in plan_trees(catalog, tmp_path, globs=["sm89-avx2"], siblings=["torchvision"]):
        plan.apply()
    flox = tmp_path / ".flox"
    named = set(re.findall(r'"((?:pytorch|torchvision)-python[^"]+)"', (flox / "default.nix").read_text()))
    assert named == {path.stem for path in (flox / "pkgs").glob("*.nix")}
    assert len(named) == 4


HAND = """{ pkgs ? import <nixpkgs> { } }:
let
  nixpkgs_pinned = import (builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/6a030d535719c5190187c4cec156f335e95e3211.tar.gz";
  }) { config = { allowUnfree = true; cudaSupport = true; cudaCapabilities = [ "9.0" ]; }; };
  customPytorch = (nixpkgs_pinned.python313Packages.torch.override {
    cudaSupport = true;
    gpuTargets = [ "9.0" ];
  }).overrideAttrs (oldAttrs: { pname = "pytorch-for-torchvision"; });
in
(nixpkgs_pinned.python313Packages.torchvision.override { torch = customPytorch; }).overrideAttrs (oldAttrs: {
  pname = "torchvision-python313-cuda12_9-sm90-avx512";
  propagatedBuildInputs = (oldAttrs.propagatedBuildInputs or [ ]) ++ [ customPytorch.out ];
  meta = oldAttrs.meta // { platforms = [ "x86_64-linux" ]; };
})
"""


def test_a_hand_written_sibling_is_judged_by_what_it_returns(catalog: Catalog, tmp_path: Path) -> None:
    """Not by the torch that it defines for itself."""
    pkgs = tmp_path / ".flox" / "pkgs"
    pkgs.mkdir(parents=True)
    path = pkgs / "torchvision-python313-cuda12_9-sm90-avx512.nix"
    path.write_text(HAND)
    (report,) = audit(catalog, tmp_path, use_nix=has_nix())
    assert report.release == "cuda-12_9"
    assert {item.rule for item in report.findings if item.file.endswith(path.name)} == {"pin-hash"}
    path.write_text(HAND.replace(".override { torch = customPytorch; }", ""))
    (report,) = audit(catalog, tmp_path, use_nix=has_nix())
    assert "sibling-torch" in {item.rule for item in report.findings}
