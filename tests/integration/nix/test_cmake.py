"""The switches of a recipe really reach CMake: PyTorch's way of calling it, and its way of finding AVX2."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.nix.conftest import needs_nix
from torchtailor.catalog import Catalog
from torchtailor.nix.evaluate import Evaluated, evaluate
from torchtailor.nix.pins import load_pins
from torchtailor.nix.write import plan_trees, recipe_variants

pytestmark = [needs_nix, pytest.mark.nix]

# Like PyTorch's FindAVX: what is in the cache already is not set again.
PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(probe NONE)
macro(check_sse lang type)
  if(NOT ${lang}_${type}_FOUND)
    set(${lang}_${type}_FOUND TRUE CACHE BOOL "")
  endif()
endmacro()
check_sse(CXX AVX2)
check_sse(CXX AVX512)
option(USE_FBGEMM "" ON)
option(USE_NNPACK "" ON)
foreach(name CXX_AVX2_FOUND CXX_AVX512_FOUND USE_FBGEMM USE_NNPACK TORCH_BUILD_VERSION)
  message(STATUS "RESULT ${name}=${${name}}")
endforeach()
"""


def configure(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """Call CMake as PyTorch's setup.py does: variables that begin with USE_, BUILD_ or CMAKE_ become -D."""
    source, build = tmp_path / "source", tmp_path / "build"
    source.mkdir()
    build.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT)
    handed = [f"-D{k}={v}" for k, v in sorted(environment.items()) if k.startswith(("USE_", "BUILD_", "CMAKE_"))]
    command = ["cmake", *handed, "-DTORCH_BUILD_VERSION=2.9.1", str(source)]
    done = subprocess.run(command, cwd=build, capture_output=True, text=True, check=True)
    words = [line.split("RESULT ", 1)[1] for line in done.stdout.splitlines() if "RESULT " in line]
    return dict(word.split("=", 1) for word in words)


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "cmake", "make"))), reason="needs bash, cmake and make")
@pytest.mark.parametrize(("short", "on"), [("cpu-avx", False), ("cpu-avx2", True)])
def test_avx_recipes_turn_off_what_needs_avx2(catalog: Catalog, tmp_path: Path, short: str, on: bool) -> None:
    version = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 24):
        pytest.skip(f"cmake {version} is older than nixpkgs' (3.24 reads CMAKE_PROJECT_TOP_LEVEL_INCLUDES)")
    variant = next(v for v in recipe_variants(catalog, "cuda-13_0") if v.short_name == short)
    for plan in plan_trees(catalog, tmp_path, releases=["cuda-13_0"], globs=[short]):
        plan.apply()
    path = tmp_path / ".flox" / "pkgs" / f"{variant.name}.nix"
    recipe = evaluate({path: variant.platform}, load_pins())[path]
    assert isinstance(recipe, Evaluated)
    names = "USE_FBGEMM|USE_NNPACK|CMAKE_PROJECT_TOP_LEVEL_INCLUDES"
    script = f"{recipe.pre_configure}\nenv | grep -E '^({names})='"
    top = tmp_path / "top"
    top.mkdir()
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=top,
        env={"PATH": os.environ["PATH"], "NIX_BUILD_TOP": str(top), "USE_NNPACK": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    environment = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (top / "version.txt").read_text() == "2.10.0\n"
    found = configure(tmp_path, environment)
    assert found["TORCH_BUILD_VERSION"] == "2.10.0"
    truth = {"ON": True, "TRUE": True, "1": True, "OFF": False, "FALSE": False, "0": False}
    values = {name: truth[value] for name, value in found.items() if name != "TORCH_BUILD_VERSION"}
    assert values == dict.fromkeys(values, on)
