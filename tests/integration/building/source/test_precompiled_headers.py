"""The headers of `[[precompiled]]` reach CMake through the toolchain file, for clang and no other compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from torchtailor.building.source.configuration import Configuration, configure
from torchtailor.building.source.tables import load_tables
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants.matrix import Matrix

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
CLANG = next(filter(None, map(shutil.which, ("clang++", "clang++-19"))), None)


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


# As in PyTorch: a header uses a member that one source file specialises, and the file's target is in a folder below.
HEADER = """
#pragma once
template <class T> struct Pointer { void free(); ~Pointer() { free(); } };
inline void used() { Pointer<int> one; }
"""
SPECIALISES = "#include <torch/csrc/python_headers.h>\ntemplate <> void Pointer<int>::free() {}\n"


def torch_python(tmp_path: Path, configuration: Configuration, *options: str, top: str) -> dict[str, bool]:
    """Whether each file of torch_python is compiled after the precompiled header; all are really compiled."""
    (tmp_path / "CMakeLists.txt").write_text(top)
    for name, text in {
        "torch/csrc/python_headers.h": HEADER,
        "torch/csrc/utils/object_ptr.cpp": SPECIALISES,
        "torch/csrc/Module.cpp": "void f() { used(); }\n",
        "torch/CMakeLists.txt": "add_library(torch_python STATIC ${CMAKE_SOURCE_DIR}/torch/csrc/utils/object_ptr.cpp\n"
        "  ${CMAKE_CURRENT_SOURCE_DIR}/csrc/Module.cpp)\n"
        "target_include_directories(torch_python PRIVATE ${CMAKE_SOURCE_DIR})\n",
        "caffe2/CMakeLists.txt": "add_subdirectory(../torch torch)\n",
        "torchtailor.cmake": configuration.cmake_text(),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    toolchain, build = tmp_path / "torchtailor.cmake", tmp_path / "build"
    given = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options]
    for command in (["cmake", *given, "-S", str(tmp_path), "-B", str(build)], ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    commands = json.loads((build / "compile_commands.json").read_text())
    return {Path(row["file"]).name: "-include" in row["command"] for row in commands if "cmake_pch" not in row["file"]}


def test_a_file_that_specialises_what_a_header_uses_is_compiled_without_it(
    tmp_path: Path, configuration: Configuration
) -> None:
    found = torch_python(tmp_path, configuration, top=TOP.format(compiler="Clang", wanted="ON"))
    assert found == {"object_ptr.cpp": False, "Module.cpp": True}


@pytest.mark.skipif(not CLANG, reason="needs clang++")
def test_clang_compiles_it(tmp_path: Path, configuration: Configuration) -> None:
    top = TOP.replace("set(CMAKE_CXX_COMPILER_ID {compiler})\n", "").format(wanted="ON")
    found = torch_python(tmp_path, configuration, f"-DCMAKE_CXX_COMPILER={CLANG}", top=top)
    assert found == {"object_ptr.cpp": False, "Module.cpp": True}
