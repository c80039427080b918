"""The repository's flake, evaluated by a real Nix with the stand-in as its input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.nix.conftest import NIX, needs_nix
from torchtailor.nix.nix import EVALUATE, run_nix

pytestmark = [needs_nix, pytest.mark.nix]
REPO = Path(__file__).parents[3]
NAME = "pytorch-python313-cuda13_0-sm90-avx512"


def evaluated(expression: str) -> Any:
    """An expression over `flake`, its outputs, and `pkgs`, which makes a nixpkgs with an overlay."""
    text = f"""
    let
      flake = (import {REPO}/flake.nix).outputs {{
        self = flake // {{ outPath = "{REPO}"; }};
        nixpkgs = {NIX}/standin;
      }};
      pkgs = system: config: overlay: import {NIX}/standin {{
        inherit system;
        config = {{ allowUnfree = true; allowBroken = true; }} // config;
        overlays = [ overlay ];
      }};
    in
    {expression}
    """
    done = run_nix("nix-instantiate", [*EVALUATE, "--expr", text])
    assert done.code == 0, done.err[-1500:]
    return json.loads(done.out)


def failure(expression: str) -> str:
    with pytest.raises(AssertionError) as caught:
        evaluated(expression)
    return str(caught.value)


def recipes_of(folder: str) -> set[str]:
    return {path.stem for path in (REPO / folder / ".flox" / "pkgs").glob("*.nix")}


def test_the_matrix_is_there_and_lazy() -> None:
    found = evaluated("builtins.mapAttrs (_: builtins.attrNames) flake.legacyPackages")
    newest, older, oldest = recipes_of("."), recipes_of("recipes/cuda-12_9"), recipes_of("recipes/main")
    assert len(found["x86_64-linux"]) + len(found["aarch64-linux"]) == len(newest) + len(older) + len(oldest) == 153
    names = {*found["x86_64-linux"], *found["aarch64-linux"]}
    assert names == {
        *newest,
        *(name + "-cuda-12_9" if name in newest else name for name in older),
        *(name + "-main" if name in newest | older else name for name in oldest),
    }
    assert {name for name in names if name.endswith(("-main", "-cuda-12_9"))} == {
        f"{name}-{release}"
        for release, own in (("main", oldest), ("cuda-12_9", older))
        for name in own
        if "-cpu-" in name
    }
    assert all("-arm" in name for name in found["aarch64-linux"])
    # Names alone: no recipe is evaluated, so nixpkgs that throw do not matter.
    lazy = f"""
    let flake = (import {REPO}/flake.nix).outputs {{ self = flake; nixpkgs = throw "used"; }};
    in builtins.attrNames flake.legacyPackages.x86_64-linux
    """
    assert evaluated(lazy) == found["x86_64-linux"]


@pytest.mark.parametrize(
    ("name", "pname", "version"),
    [
        (NAME, NAME, "2.10.0"),
        ("pytorch-python313-cuda12_9-sm61-avx2", "pytorch-python313-cuda12_9-sm61-avx2", "2.9.1"),
        ("pytorch-python313-cpu-avx2", "pytorch-python313-cpu-avx2", "2.10.0"),
        ("pytorch-python313-cpu-avx2-cuda-12_9", "pytorch-python313-cpu-avx2", "2.9.1"),
    ],
)
def test_a_variant_uses_the_input(name: str, pname: str, version: str) -> None:
    found = evaluated(f"let d = flake.legacyPackages.x86_64-linux.{name}; in {{ inherit (d) pname version drvPath; }}")
    assert (found["pname"], found["version"]) == (pname, version)


def test_release_main_has_a_nixpkgs_of_its_own() -> None:
    """Fetched by its revision when one of its recipes is used, and not before."""
    made = f"""
    let
      fetched = request: builtins.trace (builtins.toJSON request) {NIX}/standin/older.nix;
      flake = (scopedImport {{ builtins = builtins // {{ fetchTree = fetched; }}; }} {REPO}/flake.nix).outputs {{
        self = flake;
        nixpkgs = throw "the input is not its nixpkgs";
      }};
      d = flake.legacyPackages.aarch64-linux.pytorch-python313-cpu-armv9-main;
    in
    [ d.pname d.meta.platforms ]
    """
    done = run_nix("nix-instantiate", [*EVALUATE, "--expr", made])
    assert done.code == 0, done.err[-1500:]
    assert json.loads(done.out) == ["pytorch-python313-cpu-armv9", ["aarch64-linux"]]
    assert '"rev":"fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3"' in done.err


def test_the_tool_and_the_shell_evaluate_for_both_platforms() -> None:
    found = evaluated("builtins.mapAttrs (_: p: [ p.default.name p.torchtailor.meta.mainProgram ]) flake.packages")
    assert found == {
        system: ["python3.13-torchtailor-0.1.0", "torchtailor"] for system in ("aarch64-linux", "x86_64-linux")
    }
    assert set(evaluated("builtins.mapAttrs (_: s: s.default.name) flake.devShells").values()) == {"nix-shell"}


@pytest.mark.parametrize(
    ("overlay", "config"),
    [
        ("flake.overlays.default", '{ cudaSupport = true; cudaCapabilities = [ "9.0" ]; torchtailor.cpu = "avx512"; }'),
        ("flake.overlays.default", '{ cudaSupport = true; torchtailor = { gpu = "9.0"; cpu = "avx512"; }; }'),
        ('(flake.lib.overlay { gpu = "9.0"; cpu = "avx512"; })', "{ cudaSupport = true; }"),
    ],
)
def test_the_overlay_reaches_all_that_is_built_on_torch(overlay: str, config: str) -> None:
    found = evaluated(
        f"""
        let
          p = pkgs "x86_64-linux" {config} {overlay};
          env = p.python313.withPackages (ps: [ ps.torch ps.torchvision ]);
          torch = p.python313Packages.torch;
        in
        {{
          env = env.drvPath;
          inside = map (d: d.drvPath) env.paths;
          torch = torch.drvPath;
          vision = p.python313Packages.torchvision.drvPath;
          built_on = p.python313Packages.torchvision.torch.drvPath;
          arch = p.python313Packages.torchvision.env.TORCH_CUDA_ARCH_LIST;
          other = p.python312Packages.torch.cudaCapabilities;
          magma = p.magma-cuda-static.cudaCapabilities;
          nccl = map (set: set.nccl.makeFlags) [ p.cudaPackages p.cudaPackages_12_9 ];
          pre = torch.preConfigure;
          build = torch.preBuild;
          tool = p.torchtailor.pname;
        }}
        """
    )
    assert found["inside"] == [found["torch"], found["vision"]]
    assert found["built_on"] == found["torch"]
    assert found["arch"] == "9.0"
    assert found["other"] == found["magma"] == ["9.0"]
    assert found["nccl"] == [["NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90"]] * 2  # and no PTX
    assert 'TORCH_CUDA_ARCH_LIST="9.0"' in found["pre"]
    assert "-mavx512f" in found["pre"]
    assert "meminfo" not in found["build"]
    assert found["tool"] == "torchtailor"


def test_an_overlay_without_settings_changes_nothing() -> None:
    torch = "python313Packages.torch.drvPath"
    same = evaluated(f'(pkgs "x86_64-linux" {{ }} flake.overlays.default).{torch}')
    assert same == evaluated(f'(pkgs "x86_64-linux" {{ }} (final: prev: {{ }})).{torch}')


def test_the_configuration_for_nixos() -> None:
    """Evaluated as NixOS evaluates its overlays; docs/recipes.md shows the same file."""
    text = (NIX / "configuration.nix").read_text()
    shown = "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
    assert shown in (REPO / "docs" / "recipes.md").read_text()
    local = text.replace("/etc/nixos/torchtailor", str(REPO))
    found = evaluated(
        f"""
        let
          machine = ({local}) {{ pkgs = p; }};
          p = import {NIX}/standin {{
            system = "x86_64-linux";
            inherit (machine.nixpkgs) config overlays;
          }};
        in
        map (d: d.cudaCapabilities or d.torch.cudaCapabilities) (builtins.head machine.environment.systemPackages).paths
        """
    )
    assert found == [["8.9"], ["8.9"]]


def test_jobs_follow_memory_where_that_is_asked_for() -> None:
    overlay = '(flake.lib.overlay { gpu = "9.0"; gigabytesPerJob = 4; })'
    build = evaluated(f'(pkgs "x86_64-linux" {{ }} {overlay}).python313Packages.torch.preBuild')
    assert build.index("NIX_BUILD_CORES=$room") < build.index("MAX_JOBS")


def test_the_overlay_turns_off_what_the_recipe_of_the_variant_turns_off() -> None:
    overlay = '(flake.lib.overlay { gpu = "6.1"; cpu = "avx"; })'
    made = evaluated(f'(pkgs "x86_64-linux" {{ }} {overlay}).python313Packages.torch.preConfigure')
    recipe = evaluated("flake.legacyPackages.x86_64-linux.pytorch-python313-cuda12_9-sm61-avx.preConfigure")
    for line in ("export USE_CUDNN=0", "export USE_FBGEMM=0", "export USE_NNPACK=0", "set(CXX_AVX2_FOUND FALSE"):
        assert line in made
        assert line in recipe
    assert made == recipe


@pytest.mark.parametrize(
    ("name", "nixpkgs"), [("pytorch-python313-cuda12_9-sm90-avx2", "2.9.1"), ("pytorch-python313-cpu-avx2", "2.10.0")]
)
def test_another_nixpkgs_than_the_pin_throws(name: str, nixpkgs: str) -> None:
    """Its PyTorch is 2.8.0, and the recipe would say something else."""
    made = f"""
    let
      flake = (import {REPO}/flake.nix).outputs {{ self = flake; nixpkgs = {NIX}/standin/older.nix; }};
    in
    flake.legacyPackages.x86_64-linux.{name}.drvPath
    """
    done = run_nix("nix-instantiate", [*EVALUATE, "--expr", made])
    assert done.code != 0
    assert f"this is PyTorch {nixpkgs}, and the given nixpkgs has 2.8.0" in done.err


def test_another_nixpkgs_that_lacks_the_toolkit_throws() -> None:
    made = f"(import {REPO}/.flox/pkgs/{NAME}.nix {{ nixpkgsSource = {NIX}/standin/older.nix; }}).drvPath"
    done = run_nix("nix-instantiate", [*EVALUATE, "--expr", made])
    assert done.code != 0
    assert "the given nixpkgs has no cudaPackages_13_0: give the nixpkgs that the recipe pins" in done.err


def test_wrong_settings_are_named() -> None:
    torch = "python313Packages.torch.drvPath"
    for setting, message in (
        ('gpu = "99.9"', "there is no GPU with compute capability 99.9"),
        ('gpu = "12.1"', "CUDA 12.8 cannot compile for compute capability 12.1; 12.9, 13.0"),
        ('gpu = "sm_90"', "must be a compute capability such as 9.0"),
        ('cpu = "avx3"', "there is no instruction set avx3"),
        ('cpu = "armv9"', "armv9 is for aarch64-linux, and this is x86_64-linux"),
        ("gpu = 9.0", 'a compute capability in quotes, such as "9.0", and not a float'),
        ('gpu = [ "8.0" "9.0" ]', "and not a list"),
        ('gpu = "7.5a"', "compute capability 7.5 has no code of its own: 7.5a does not exist"),
        ('gpu = "9.0f"', "9.0f does not exist"),
        ("cpu = 5", 'an instruction set in quotes, such as "avx512", and not a int'),
        ('gpu = "10.0f"', "CUDA 12.8 cannot compile for compute capability 10.0f: it needs 12.9"),
        ('gpu = "8.7"', "compute capability 8.7 is a Jetson's, which is aarch64-linux, and this is x86_64-linux"),
        ('gpu = "9.0"; gigabytesPerJob = 0', "gigabytesPerJob must be a whole number above 0"),
        ('gpu = "9.0"; gigabytesPerJob = "4"', "gigabytesPerJob must be a whole number above 0"),
    ):
        assert message in failure(f'(pkgs "x86_64-linux" {{ }} (flake.lib.overlay {{ {setting}; }})).{torch}')


def test_a_mac_is_named() -> None:
    for setting, message in (
        ('cpu = "armv9"', "armv9 is for aarch64-linux, and this is aarch64-darwin"),
        ('gpu = "9.0"', "CUDA is for Linux, and this is aarch64-darwin"),
    ):
        overlay = f"(flake.lib.overlay {{ {setting}; }})"
        assert message in failure(f'(pkgs "aarch64-darwin" {{ }} {overlay}).python313Packages.torch.drvPath')


def test_an_overlay_over_another_is_refused() -> None:
    """The CPU flags of both would reach the compiler."""
    both = """(final: prev:
      let first = prev // flake.lib.overlay { cpu = "avx512"; } final prev;
      in first // flake.lib.overlay { cpu = "avx2"; } final first)"""
    text = failure(f'(pkgs "x86_64-linux" {{ }} {both}).python313Packages.torch.drvPath')
    assert "this PyTorch is already tailored: use the overlay once" in text


def test_a_setting_that_does_not_exist_is_named() -> None:
    misspelt = '(pkgs "x86_64-linux" { torchtailor.gpus = "9.0"; } flake.overlays.default)'
    assert "config.torchtailor has no gpus; it has gpu, cpu" in failure(f"{misspelt}.python313Packages.torch.drvPath")


def test_a_capability_that_nvcc_has_and_nixpkgs_lacks_is_named() -> None:
    newer = "(final // { cudaPackages = final.cudaPackages_13_0; })"
    overlay = f'(final: prev: flake.lib.overlay {{ gpu = "8.8"; }} {newer} prev)'
    text = failure(f'(pkgs "x86_64-linux" {{ }} {overlay}).python313Packages.torch.drvPath')
    assert "the given nixpkgs does not know compute capability 8.8: 10.0 10.0a" in text


def test_a_jetson_that_the_toolkit_leaves_out_is_named() -> None:
    """NVIDIA has CUDA 13 for Thor and no older Jetson; CUDA 12 is there for both."""
    torch = """
    let
      cuda = version: final: prev: { cudaPackages = final.${"cudaPackages_" + version}; };
      both = version: final: prev:
        cuda version final prev // flake.lib.overlay { gpu = "8.7"; cpu = "armv8_2"; } final prev;
      torch = version: (pkgs "aarch64-linux" { } (both version)).python313Packages.torch;
    in
    """
    assert evaluated(f'{torch} [ (torch "12_9").cudaCapabilities (torch "12_8").drvPath ]')[0] == ["8.7"]
    text = failure(f'{torch} (torch "13_0").drvPath')
    assert "the given nixpkgs has no CUDA 13.0 for compute capability 8.7 on aarch64-linux: give it an older" in text


def test_settings_that_are_no_set_are_named() -> None:
    text = '(pkgs "x86_64-linux" { torchtailor = "9.0"; } flake.overlays.default)'
    assert "config.torchtailor must be a set" in failure(f"{text}.python313Packages.torch.drvPath")


def test_torch_bin_is_cut(tmp_path: Path) -> None:
    """lib.tailor on something in the shape of nixpkgs' torch-bin."""
    made = """
    let
      p = pkgs "x86_64-linux" { } (final: prev: { });
      bin = (p.python313Packages.buildPythonPackage {
        pname = "torch";
        version = "2.9.1";
        format = "wheel";
        buildInputs = [ p.cudaPackages.libcublas p.cudaPackages.cudnn ];
        passthru = { stdenv = p.stdenv; pythonModule.sitePackages = "lib/python3.13/site-packages"; };
      });
      of = nvidia: flake.lib.tailor { torch = bin; gpu = "9.0"; inherit nvidia; };
    in
    { whole = bin.drvPath; cut = (of false).preInstall; drv = (of false).drvPath; inputs = (of true).buildInputs;
      post = (of true).postInstall; libraries = map (d: d.pname) (of true).nvidiaLibraries; }
    """
    found = evaluated(made)
    assert "torchtailor tailor --gpu 9.0" in found["cut"]
    assert "--nvidia" not in found["cut"]
    assert "--nvidia" in found["post"]
    assert found["inputs"] == []  # no library path leads to the whole libraries
    assert found["libraries"] == ["libcublas", "cudnn"]
    assert found["drv"] != found["whole"]
