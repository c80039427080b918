"""The headers of `[[precompiled]]` reach CMake through the toolchain file, for clang and no other compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torchtailor.backends.source.configuration import Configuration, configure
from torchtailor.backends.source.tables import load_tables
from torchtailor.catalog import Catalog
from torchtailor.variants.matrix import Matrix

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "c++", "make"))), reason="needs cmake, c++ and make"
)

# Like PyTorch: the target is in a folder below, and has a precompiled header of its own. A compiler is known by its ID.
TOP = """
cmake_minimum_required(VERSION 3.19)
project(probe CXX)
set(CMAKE_CXX_COMPILER_ID {compiler})
option(USE_PRECOMPILED_HEADERS "" {wanted})
add_subdirectory(caffe2)
"""
BELOW = """
add_library(torch_cpu STATIC a.cpp)
target_include_directories(torch_cpu PRIVATE ${CMAKE_SOURCE_DIR})
if(USE_PRECOMPILED_HEADERS)
  target_precompile_headers(torch_cpu PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:own.h>")
endif()
"""
MISSING = "torch/csrc/jit/api/module.h"


@pytest.fixture
def configuration(catalog: Catalog) -> Configuration:
    return configure(load_tables(), Matrix(catalog).resolve("cpu-avx2").variant)


def precompiled(tmp_path: Path, configuration: Configuration, compiler: str, *, wanted: bool = True) -> list[str]:
    """What CMake includes in the precompiled header of torch_cpu; every file is really compiled."""
    headers = [header for row in configuration.precompiled if row.target == "torch_cpu" for header in row.headers]
    for header in [*headers, "own.h"]:
        if header != MISSING:
            path = tmp_path / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#pragma once\n")
    (tmp_path / "CMakeLists.txt").write_text(TOP.format(compiler=compiler, wanted="ON" if wanted else "OFF"))
    (tmp_path / "caffe2").mkdir()
    (tmp_path / "caffe2/CMakeLists.txt").write_text(BELOW)
    (tmp_path / "caffe2/a.cpp").write_text("int a;\n")
    (tmp_path / "torchtailor.cmake").write_text(configuration.cmake_text())
    build = tmp_path / "build"
    for command in (
        ["cmake", f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'torchtailor.cmake'}", "-S", str(tmp_path), "-B", str(build)],
        ["cmake", "--build", str(build)],
    ):
        subprocess.run(command, capture_output=True, text=True, check=True)
    written = build / "caffe2/CMakeFiles/torch_cpu.dir/cmake_pch.hxx"
    lines = written.read_text().splitlines() if written.exists() else []
    return [line.split('"')[1] for line in lines if line.startswith("#include")]


def test_clang_precompiles_them_after_pytorchs_own(tmp_path: Path, configuration: Configuration) -> None:
    found = precompiled(tmp_path, configuration, "Clang")
    assert found[0] == "own.h"
    assert "torch/csrc/jit/ir/ir.h" in found
    assert len(found) == len(set(found)) > 3


def test_a_header_that_this_pytorch_does_not_have_is_left_out(tmp_path: Path, configuration: Configuration) -> None:
    assert MISSING in configuration.cmake_text()
    assert MISSING not in precompiled(tmp_path, configuration, "Clang")


def test_gcc_precompiles_pytorchs_own_only(tmp_path: Path, configuration: Configuration) -> None:
    assert precompiled(tmp_path, configuration, "GNU") == ["own.h"]


def test_nothing_is_precompiled_against_the_users_wish(tmp_path: Path, configuration: Configuration) -> None:
    assert precompiled(tmp_path, configuration, "Clang", wanted=False) == []


def test_not_with_ccache(catalog: Catalog) -> None:
    variant = Matrix(catalog).resolve("cpu-avx2").variant
    assert "precompile" not in configure(load_tables(), variant, ccache=True).cmake_text()
