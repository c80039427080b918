"""Each rule of the audit: a recipe that breaks it, and the same recipe unbroken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.unit.nix.conftest import HASH, write_tree
from torchtailor.catalog import Catalog
from torchtailor.nix.audit import audit_context, open_tree
from torchtailor.nix.nix import has_nix
from torchtailor.nix.rules import RULES, AuditContext
from torchtailor.nix.tree import FileOrigin, origin, tree_at

SM90 = "pytorch-python313-cuda13_0-sm90-avx512"
ARM = "pytorch-python313-cuda13_0-sm90-armv9"
CPU_AVX = "pytorch-python313-cpu-avx"
OLD = "pytorch-python313-cuda12_9-sm90-avx512"
PIN = "6a030d535719c5190187c4cec156f335e95e3211"


@dataclass(frozen=True)
class Case:
    """How to break a rule: replace pieces of a good recipe."""

    rule: str
    changes: tuple[tuple[str, str], ...]
    name: str = SM90
    release: str = "cuda-13_0"
    rename: str = ""
    line_of: str = ""
    needs_nix: bool = False


def case(rule: str, old: str, new: str, **more: object) -> Case:
    return Case(rule, ((old, new),), **more)  # type: ignore[arg-type]


CASES = [
    case("syntax", "in\n(nixpkgs_pinned", "in in\n(nixpkgs_pinned"),
    case("syntax", "meta = (oldAttrs", "meta = ((oldAttrs"),
    case(
        "evaluation", "cudaSupport = true;\n  gpu", "noSuchArgument = 1;\n  cudaSupport = true;\n  gpu", needs_nix=True
    ),
    case("pin-wrong", PIN, "fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3", line_of="fe5e41d7"),
    case("pin-missing", "builtins.fetchTarball {", "builtins.fetchGit {"),
    case("pin-hash", f'sha256 = "{HASH}";', "", line_of="archive/"),
    case("hash-placeholder", "sha256-RKiZLHBCneMtZKRgTEuW1K7+Jpi+tx11BMXuS1jC1xQ=", "", line_of='hash = "";'),
    case("alias-cuda", "cudaPackages_13_0", "cudaPackages_13", line_of="cudaPackages_13;"),
    case(
        "alias-python", "nixpkgs_pinned.python313Packages", "nixpkgs_pinned.python3Packages", line_of="python3Packages"
    ),
    case("result-link", "cudaSupport = true;\n  gpu", "mpi = ../../result-openmpi;\n  cudaSupport = true;\n  gpu"),
    case("pname", 'pname = "pytorch-', 'pname = "pytorch210-', line_of="pname ="),
    case("arch-name", 'gpuArchSM = "9.0"', 'gpuArchSM = "8.0"', line_of="gpuArchSM ="),
    case("arch-spelling", 'gpuArchSM = "9.0"', 'gpuArchSM = "sm_90"'),
    case("arch-list", "export PYTORCH_BUILD_NUMBER=0", 'export TORCH_CUDA_ARCH_LIST="9.0"', line_of="TORCH_CUDA_ARCH"),
    case("cuda-name", "cudaPackages_13_0", "cudaPackages_12_9", line_of="cudaPackages_12_9"),
    case("python-name", "python313Packages.torch", "python312Packages.torch", line_of="python312Packages.torch"),
    case("platform", '[ "x86_64-linux" ]', '[ "x86_64-linux" "aarch64-linux" ]', line_of="platforms ="),
    case("cpu-flags", '"-mavx512bw"', '"-mavx2"', line_of="cpuFlags = ["),
    case("cpu-flags-unused", 'export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ', 'export CXXFLAGS="'),
    case(
        "flags-unreached",
        "    passthru =",
        '    cmakeFlags = [ "-DUSE_X=1" ];\n    passthru =',
        line_of="cmakeFlags = [",
    ),
    case("flags-unreached", "export PYTORCH_BUILD_NUMBER=0", 'cmakeFlags+=" -DUSE_X=1"', line_of='cmakeFlags+="'),
    case(
        "flags-unreached", "    passthru =", '    ${"cmake" + "Flags"} = [ "-DX=1" ];\n    passthru =', needs_nix=True
    ),
    case("flags-unreached", "export PYTORCH_BUILD_NUMBER=0", "cmakeFlagsArray+=(-DUSE_X=1)", line_of="FlagsArray"),
    case("cache-unreached", "export USE_FBGEMM=0", "export CXX_AVX2_FOUND=0", name=CPU_AVX, line_of="export CXX_AVX2"),
    case("jobs-overwritten", "export PYTORCH_BUILD_NUMBER=0", "export MAX_JOBS=32", line_of="MAX_JOBS=32"),
    case("jobs-overwritten", "    passthru =", '    ninjaFlags = [ "-j32" ];\n    passthru =', line_of="ninjaFlags"),
    case(
        "patches-dropped",
        "    passthru =",
        "    patches = [ ];\n    passthru =",
        name=OLD,
        release="cuda-12_9",
        line_of="patches = [",
    ),
    case("toolkit-stub", "cat > cmake/Modules/FindCUDAToolkit.cmake", "cat > cmake/Modules/FindNothing.cmake"),
    case("overlay-cuda", "(final: prev: { cudaPackages = final.cudaPackages_13_0; })", ""),
    case("overlay-magma", "235aefb7b064954fce09d035c69907ba8a87cbcd", "0000000000000000000000000000000000000000"),
    case("overlay-magma", "patches = (oldAttrs.patches or [ ]) ++ [", "unused = (oldAttrs.patches or [ ]) ++ ["),
    case("magma-off", "export PYTORCH_BUILD_NUMBER=0", "export USE_MAGMA=0", line_of="USE_MAGMA"),
    case(
        "magma-off",
        "    passthru =",
        '    env = (oldAttrs.env or { }) // { USE_MAGMA = "0"; };\n    passthru =',
        line_of="USE_MAGMA",
    ),
    case("overlay-torch", 'version = "2.10.0";', 'version = "2.9.0";', line_of='version = "2.9.0"'),
    case("version-fixes", "export PYTORCH_BUILD_VERSION=2.10.0", "export PYTORCH_BUILD_VERSION=2.9.1"),
    case("version-fixes", "echo 2.10.0 > version.txt", "# echo 2.10.0 > version.txt"),
    case("cccl-links", "cuda_cccl}/include/thrust ", "cuda_cccl}/include/other "),
    case("broken-refused", "allowBroken = true;", "allowBroken = false;"),
    case("unfree-refused", "allowUnfree = true;", "# allowUnfree = true;"),
    case("attribute-pytorch", "Packages.torch.override {", "Packages.pytorch.override {", line_of="pytorch.override"),
    case(
        "foreign-pattern", "(nixpkgs_pinned.python313Packages.torch.override {", "(nixpkgs_pinned.stdenv.mkDerivation {"
    ),
    case("cuda-off", "cudaSupport = true;\n  gpu", "cudaSupport = false;\n  gpu", line_of="cudaSupport = false"),
    case("blas-provider", 'cpuISA = "', 'blasProvider = "cublas";\n      cpuISA = "', line_of="blasProvider"),
    case("must-be-off", "export USE_FBGEMM=0", "export USE_FBGEMM=1", name=CPU_AVX),
    case("must-be-off", "set(CXX_AVX512_FOUND FALSE", "# set(CXX_AVX512_FOUND TRUE", name=CPU_AVX),
    case("must-be-off", "set(CXX_AVX512_FOUND FALSE", "# set(CXX_AVX512_FOUND FALSE", name=CPU_AVX),
    case("claim-cuda", "# Overlay 1: CUDA 13.0", "# Overlay 1: CUDA 12.8", line_of="CUDA 12.8"),
    case("claim-gpu", "# GPU: SM90", "# GPU: SM120", line_of="# GPU: SM120"),
    case("claim-product", 'description = "PyTorch 2.10.0 for', 'description = "For the L40S:', line_of="L40S"),
    case("claim-cpu", "CPU: aarch64 with", "CPU: Graviton3 with", name=ARM, line_of="Graviton3 with"),
    case("claim-name", "# CPU: AVX-512", f"# CPU: AVX-512, like {OLD}", line_of="# CPU: AVX-512, like"),
    case("driver-floor", "Driver: NVIDIA 580.95.05 or newer", "Driver: NVIDIA 550+", line_of="550+"),
    case(
        "driver-minor",
        "Driver: NVIDIA 575.57.08 or newer (525.60.13 with minor-version compatibility)",
        "Driver: NVIDIA 550+",
        name=OLD,
        release="cuda-12_9",
        line_of="550+",
    ),
    Case("variant-impossible", (), rename="pytorch-python313-cuda13_0-sm121-avx512"),
    Case("variant-redundant", (), rename=f"{SM90}-magma"),
    Case("variant-unlisted", (), rename="pytorch-python313-cuda13_0-sm90-avx"),
    Case("file-unknown", (), rename="torch-for-my-laptop"),
]


@cache
def good(release: str, name: str) -> str:
    """A recipe that calls no library and breaks no rule."""
    return (Path(__file__).parent / "selfcontained" / release / f"{name}.nix").read_text("utf-8")


def context_of(catalog: Catalog, root: Path, item: Case, text: str, *, with_nix: bool = False) -> AuditContext:
    path = root / ".flox" / "pkgs" / f"{item.rename or item.name}.nix"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return open_tree(catalog, tree_at(root), release=item.release, with_nix=with_nix)


def broken_text(item: Case) -> str:
    text = good(item.release, item.name)
    for old, new in item.changes:
        assert old in text, f"{old!r} is not in the recipe"
        text = text.replace(old, new)
    return text


def hits_of(rule: str, context: AuditContext) -> list[tuple[int, str]]:
    check = RULES[rule].on_recipe
    assert check is not None
    return list(check(context.recipes[0], context))


@pytest.mark.parametrize("item", CASES, ids=lambda item: item.rule)
def test_a_broken_recipe_is_caught_at_its_line(catalog: Catalog, tmp_path: Path, item: Case) -> None:
    if item.needs_nix and not has_nix():
        pytest.skip("needs nix-instantiate")
    context = context_of(catalog, tmp_path, item, broken_text(item), with_nix=item.needs_nix)
    hits = hits_of(item.rule, context)
    assert hits
    assert all(message for _, message in hits)
    lines = context.recipes[0].text.splitlines()
    assert all(1 <= line <= len(lines) for line, _ in hits)
    if item.line_of:
        assert any(item.line_of in lines[line - 1] for line, _ in hits)


@pytest.mark.parametrize("release_name", sorted({(item.release, item.name) for item in CASES}))
def test_an_unbroken_recipe_breaks_no_rule(catalog: Catalog, tmp_path: Path, release_name: tuple[str, str]) -> None:
    release, name = release_name
    item = Case("", (), name=name, release=release)
    context = context_of(catalog, tmp_path, item, good(release, name))
    found = [finding for finding in audit_context(context) if finding.file.endswith(f"{name}.nix")]
    assert found == []


IN_CODE = [c for c in CASES if c.changes and not c.rule.startswith(("claim-", "driver-", "syntax"))]


@pytest.mark.parametrize("item", IN_CODE, ids=lambda item: item.rule)
def test_a_comment_never_fools_a_rule(catalog: Catalog, tmp_path: Path, item: Case) -> None:
    """The broken text in a comment is no fault, except for the rules that read comments."""
    comment = "".join(f"# {line}\n" for _, new in item.changes for line in new.splitlines())
    context = context_of(catalog, tmp_path, item, good(item.release, item.name) + comment)
    assert hits_of(item.rule, context) == []


def test_a_patch_may_have_a_name_of_its_own(catalog: Catalog, tmp_path: Path) -> None:
    text = good("cuda-13_0", SM90)
    start = text.index("(final.fetchpatch {")
    patch = text[start : text.index("})", start) + 2]
    text = text.replace(patch, "clockRate").replace("  # CPU: ", f"  clockRate = final: {patch};\n\n  # CPU: ", 1)
    context = context_of(catalog, tmp_path, Case("", ()), text)
    assert hits_of("syntax", context) == []
    assert hits_of("overlay-magma", context) == []


def test_a_generated_recipe_changed_by_hand_is_edited(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", SM90)
    path = tmp_path / ".flox" / "pkgs" / f"{SM90}.nix"
    path.write_text(path.read_text().replace("# Driver:", "# A driver:"))
    context = open_tree(catalog, tree_at(tmp_path), with_nix=False)
    found = [finding.rule for finding in audit_context(context) if finding.file.endswith(path.name)]
    assert found == ["edited"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('gpuArchSM = "9.0"', 'gpuArchSM = "8.0"'),
        ('  gpuArchSM = "9.0";\n', ""),
        ('cuda = "13.0"', 'cuda = "12.9"'),
        ('cpu = "avx512"', 'cpu = "avx2"'),
        ('python = "3.13"', 'python = "3.12"'),
    ],
)
def test_a_row_that_is_not_what_the_file_is_called(catalog: Catalog, tmp_path: Path, old: str, new: str) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", SM90)
    path = tmp_path / ".flox" / "pkgs" / f"{SM90}.nix"
    assert hits_of("row-name", open_tree(catalog, tree_at(tmp_path), with_nix=False)) == []
    path.write_text(path.read_text().replace(old, new))
    assert len(hits_of("row-name", open_tree(catalog, tree_at(tmp_path), with_nix=False))) == 1


def test_a_library_changed_by_hand_is_found(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", SM90)
    path = tmp_path / ".flox" / "torchtailor" / "tailor.nix"
    path.write_text(path.read_text().replace("cudaForwardCompat = false", "cudaForwardCompat = true"))
    context = open_tree(catalog, tree_at(tmp_path), with_nix=False)
    assert [(found.rule, found.file) for found in audit_context(context)] == [
        ("table-stale", ".flox/torchtailor/tailor.nix")
    ]


def test_a_generated_recipe_of_another_catalog_is_stale(catalog: Catalog, tmp_path: Path) -> None:
    write_tree(catalog, tmp_path, "cuda-13_0", SM90, locked=False)  # without the hash that the lock gets now
    path = tmp_path / ".flox" / "pkgs" / f"{SM90}.nix"
    assert origin(path.read_text()) is FileOrigin.GENERATED
    lock = tmp_path / ".flox" / "torchtailor-hashes.toml"
    lock.write_text(f'[hashes]\n"nixpkgs/{PIN}" = "{HASH}"\n')
    context = open_tree(catalog, tree_at(tmp_path), with_nix=False)
    stale = [found for found in audit_context(context) if found.rule == "stale"]
    assert len(stale) == 1
    assert "sha256 is not known" in path.read_text().splitlines()[stale[0].line - 1]
    write_tree(catalog, tmp_path, "cuda-13_0", SM90, locked=False)
    context = open_tree(catalog, tree_at(tmp_path), with_nix=False)
    assert not [found for found in audit_context(context) if found.rule == "stale"]


TREE_RULES = {
    "pin-unknown",
    "pins-several",
    "release-unknown",
    "variant-missing",
    "manifest-clash",
    "table-stale",
    "document-recipe",
    "document-elsewhere",
    "script-exit",
    "script-glob",
    "sibling-repository",
    "sibling-torch",
    "row-name",
    "wheel-target",
    "unreadable",
    "edited",
    "stale",
    "capability-list",
    "capability-missing",
}


def test_every_rule_has_a_case() -> None:
    assert {item.rule for item in CASES} | TREE_RULES == set(RULES)


def test_rules_have_words() -> None:
    for rule in RULES.values():
        assert rule.looks_for, rule.id
        assert rule.fix.endswith("."), rule.id
        assert (rule.on_recipe is None) != (rule.on_tree is None), rule.id
