"""All recipes, evaluated by a real Nix against the strict stand-in, each held against the catalog."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.nix.conftest import needs_nix
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants.variant import Variant
from torchtailor.nix.audit import audit, audit_context, open_tree
from torchtailor.nix.evaluate import Evaluated, Failed, check_syntax, evaluate
from torchtailor.nix.nix import run_nix
from torchtailor.nix.pins import load_pins
from torchtailor.nix.tree import tree_at
from torchtailor.nix.write import plan_trees, recipe_variants

pytestmark = [needs_nix, pytest.mark.nix]
HANDMADE = Path(__file__).parents[2] / "unit" / "nix" / "handmade"
RELEASES = ("main", "cuda-12_9", "cuda-13_0")


def evaluated(catalog: Catalog, root: Path, release: str, python: str = "3.13") -> list[tuple[Variant, Evaluated]]:
    for plan in plan_trees(catalog, root, releases=[release], pythons=[python]):
        plan.apply()
    variants = recipe_variants(catalog, release, pythons=[python])
    paths = {root / ".flox" / "pkgs" / f"{variant.name}.nix": variant for variant in variants}
    outcomes = evaluate({path: variant.platform for path, variant in paths.items()}, load_pins())
    found = []
    for path, variant in paths.items():
        outcome = outcomes[path]
        assert isinstance(outcome, Evaluated), outcome
        found.append((variant, outcome))
    return found


@pytest.mark.parametrize(("release", "count"), [("main", 44), ("cuda-12_9", 50), ("cuda-13_0", 59)])
def test_every_recipe_evaluates_to_what_the_catalog_says(
    catalog: Catalog, tmp_path: Path, release: str, count: int
) -> None:
    found = evaluated(catalog, tmp_path, release)
    assert len(found) == count
    pin = catalog.release(release).nixpkgs
    for variant, recipe in found:
        assert recipe.pname == variant.name
        assert recipe.version == str(variant.release.version)
        assert recipe.name == f"{recipe.pname}-{recipe.version}"
        assert recipe.drv.endswith(f"-{recipe.name}.drv")
        assert recipe.platforms == (variant.platform,)
        assert recipe.python == variant.python
        assert recipe.pin == pin
        assert recipe.cuda == (str(variant.build.cuda) if variant.gpu else None)
        assert (recipe.arch_list or "") == (str(variant.gpu.capability) if variant.gpu else "")
        assert recipe.allow_broken == recipe.broken  # allowed where nixpkgs says it, and nowhere else
        assert recipe.blas == "openblas"
        assert all(flag in recipe.pre_configure for flag in variant.isa.compile_flags)
        assert recipe.cmake_flags == tuple(flag for flag in recipe.cmake_flags if "CUDAToolkit_VERSION" in flag)
        major = variant.build.cuda.major if variant.build.cuda else 0
        assert bool(recipe.magma_patches) == (major == 13)
        assert recipe.capabilities == ((str(variant.gpu.capability),) if variant.gpu else ())
        if variant.gpu:  # MAGMA and NCCL are linked in: they must have code for this GPU, and for no other
            number = variant.gpu.capability.number
            assert recipe.magma_targets == (str(variant.gpu.capability),)
            assert recipe.nccl_targets == (f"NVCC_GENCODE=-gencode=arch=compute_{number},code=sm_{number}",)
        assert recipe.changelog.endswith(f"/v{recipe.version}")


def test_what_reaches_the_build(catalog: Catalog, tmp_path: Path) -> None:
    recipes = {variant.short_name: recipe for variant, recipe in evaluated(catalog, tmp_path, "cuda-13_0")}
    gpu = recipes["sm121-armv9"]
    assert gpu.pre_configure.index('TORCH_CUDA_ARCH_LIST="12.1"') < gpu.pre_configure.index("export CFLAGS")
    assert re.search(r"^EOF$", gpu.pre_configure, re.MULTILINE)  # the here-document ends where the shell sees it
    assert re.search(r"^EOF$", gpu.post_patch, re.MULTILINE)
    assert "include(${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)" in gpu.post_patch
    assert gpu.post_patch.index("rm cmake/Modules/FindCUDAToolkit.cmake") < gpu.post_patch.index("cat > cmake/Modules")
    assert "meminfo" not in gpu.pre_build  # not unless it is asked for
    # nixpkgs' patches and edits are for 2.9.1: one that does not fit ends the build before it has cost hours
    assert "--replace-warn" not in gpu.post_patch + gpu.post_install
    assert """--replace-fail '"setuptools"' "setuptools\"""" in gpu.post_patch
    assert "--replace-fail" in gpu.post_install
    assert gpu.patches == 2
    assert "version.txt" in gpu.pre_configure
    assert 'set(CUDA_VERSION "13.0" CACHE STRING "")' in gpu.pre_configure
    assert "for folder in cuda cub thrust nv" in gpu.pre_configure
    assert "cuda" not in recipes["cpu-avx512"].pre_configure.lower()
    assert recipes["cpu-avx512"].patches == 1


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_other_pythons_evaluate(catalog: Catalog, tmp_path: Path, python: str) -> None:
    for variant, recipe in evaluated(catalog, tmp_path, "cuda-13_0", python):
        assert recipe.python == python
        assert recipe.pname == variant.name


def test_spark_evaluates_alone_and_with_a_sibling_repository(catalog: Catalog, tmp_path: Path) -> None:
    root, sibling = tmp_path / "build-pytorch", tmp_path / "build-cudatoolkit" / ".flox" / "pkgs"
    for plan in plan_trees(catalog, root, releases=["cuda-13_0"], globs=["sm121-*"], spark=True):
        plan.apply()
    pkgs = root / ".flox" / "pkgs"
    nightly = pkgs / "pytorch-python313-cuda13_0-sm121-armv9-nightly.nix"
    wrapper = pkgs / "pytorch-python313-cuda13_0-sm121-armv9-nightly-wrapper.nix"
    parts = {name: pkgs / f"{name}-13_0.nix" for name in ("cudatoolkit", "cudnn", "nccl", "libcusparse_lt")}
    files = dict.fromkeys((nightly, wrapper, *parts.values()), "aarch64-linux")
    outcomes = evaluate(files, load_pins())
    lonely = outcomes[wrapper]
    assert isinstance(lonely, Failed)
    assert "clone the repository there, or give its path as cudaToolkitRepo" in lonely.message
    alone = outcomes[nightly]
    assert isinstance(alone, Evaluated)
    assert (alone.pname, alone.arch_list, alone.cuda) == (
        "pytorch-python313-cuda13_0-sm121-armv9-nightly",
        "12.1",
        "13.0",
    )
    assert alone.magma_patches == ("cuda-13.0-clockrate-fix.patch",)
    versions = {name: outcomes[path] for name, path in parts.items()}
    assert {name: one.version for name, one in versions.items() if isinstance(one, Evaluated)} == {
        "cudatoolkit": "13.0",
        "cudnn": "9.13.0.50",
        "nccl": "2.28.7-1",
        "libcusparse_lt": "0.8.1.1",
    }
    sibling.mkdir(parents=True)
    for name, path in parts.items():
        if name == "nccl":  # as the seeds' repository has it
            (sibling / path.name).write_text("{ cudaPackages_13 }:\n\ncudaPackages_13.nccl\n")
        else:
            shutil.copy(path, sibling)
    wrapped = evaluate({wrapper: "aarch64-linux"}, load_pins())[wrapper]
    assert isinstance(wrapped, Evaluated), wrapped
    assert wrapped.pname == alone.pname


STRICT = [
    ("cudaSupport = true;\n  gpu", "cudnnSupport = true;\n  gpu", "cudnnSupport"),
    ("final.cudaPackages_13_0", "final.cudaPackages_13_7", "cudaPackages_13_7"),
    ("nixpkgs_pinned.python313Packages.torch", "nixpkgs_pinned.python39Packages.torch", "python39Packages"),
    ("Packages.torch.override {", "Packages.torchh.override {", "torchh"),
    ("cudaPackages.cuda_cccl}/include/nv", "cudaPackages.cuda_ccl}/include/nv", "cuda_ccl"),
    ('rev = "v2.10.0";', "", "wants a rev or a tag"),
    ('    pname = "', '    env.USE_NNPACK = "0";\n    pname = "', "cannot contain any attributes"),
    ("inherit (pkgs.stdenv.hostPlatform) system;", "platform = 1;", "platform"),
]


@pytest.mark.parametrize(("old", "new", "expected"), STRICT, ids=[expected for _, _, expected in STRICT])
def test_the_stand_in_is_strict_where_nixpkgs_is(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "pytorch-python313-cuda13_0-sm90-avx512.nix"
    text = (HANDMADE.parent / "selfcontained" / "cuda-13_0" / path.name).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    outcome = evaluate({path: "x86_64-linux"}, load_pins())[path]
    assert isinstance(outcome, Failed)
    assert expected in outcome.message


def test_one_bad_recipe_does_not_hide_the_others(catalog: Catalog, tmp_path: Path) -> None:
    for plan in plan_trees(catalog, tmp_path, releases=["main"]):
        plan.apply()
    paths = sorted((tmp_path / ".flox" / "pkgs").glob("*.nix"))
    bad = paths[3::11]
    for path in bad:
        path.write_text(path.read_text().replace('python = "3.13"', 'python = "3.9"'))
    systems = {path: "aarch64-linux" if "-armv" in path.name else "x86_64-linux" for path in paths}
    outcomes = evaluate(systems, load_pins())
    assert [path for path in paths if isinstance(outcomes[path], Failed)] == bad
    failed = outcomes[bad[0]]
    assert isinstance(failed, Failed)
    assert "python39Packages" in failed.message


def test_syntax_is_nixs_own_word(tmp_path: Path) -> None:
    path = tmp_path / "a.nix"
    path.write_text("{ a }:\n{\n  b = 1\n}\n")
    failed = check_syntax(path)
    assert failed is not None
    assert "syntax error" in failed.message
    assert failed.line in (3, 4)
    path.write_text("{ a }: a\n")
    assert check_syntax(path) is None


def test_the_audit_of_a_handmade_tree_with_nix(catalog: Catalog) -> None:
    (report,) = audit(catalog, HANDMADE, use_nix=True)
    assert report.evaluated
    by_file = {(Path(finding.file).stem, finding.rule) for finding in report.findings}
    assert ("pytorch-python313-cuda13_0-sm121-armv9-nightly", "evaluation") in by_file
    assert ("pytorch-python313-cuda13_0-sm110-armv9", "cuda-name") in by_file  # it evaluates to nixpkgs' default CUDA


def test_our_trees_pass_with_nix_and_a_missing_sibling_is_a_warning(catalog: Catalog, tmp_path: Path) -> None:
    for plan in plan_trees(catalog, tmp_path, releases=["cuda-13_0"], spark=True):
        plan.apply()
    context = open_tree(catalog, tree_at(tmp_path), with_nix=True)
    rules = {finding.rule for finding in audit_context(context)}
    assert rules == {"pin-hash", "hash-placeholder", "sibling-repository"}


@pytest.mark.slow
def test_a_tree_of_250_recipes_takes_a_few_runs_of_nix(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plan in plan_trees(catalog, tmp_path, releases=["cuda-13_0"], pythons=["3.11", "3.12", "3.13"], spark=True):
        plan.apply()
    extra = tmp_path / ".flox" / "pkgs"
    for at, path in enumerate(sorted(extra.glob("pytorch-python313-*.nix"))):
        shutil.copy(path, extra / f"{path.stem}-copy{at}.nix")
    count = len(list(extra.glob("*.nix")))
    assert count >= 240
    runs: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments)
        return run_nix(*arguments, **options)

    monkeypatch.setattr("torchtailor.nix.evaluate.run_nix", counted)
    (report,) = audit(catalog, tmp_path, use_nix=True)
    assert report.recipes == count
    assert 0 < len(runs) <= count // 10  # starting Nix is what costs: many recipes in each run
