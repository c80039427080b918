"""What builds share: host objects through ccache, device objects across ISAs, and a CUDA toolkit made of wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.building.source.conftest import Build
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source.buildenv import make_environment
from torchtailor.building.source.ccache import ccache_environment, prepare, read_hits
from torchtailor.building.source.cudawheels import make_cuda, write_driver_stub
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.tables import load_tables
from torchtailor.catalog import Dotted
from torchtailor.catalog.variants import Variant
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.core.errors import EnvironmentProblem, NetworkError
from torchtailor.core.pythons import find_base_python, running_python

pytestmark = pytest.mark.xdist_group("source")

KERNEL = """
template <typename T> __global__ void scale_NUMBER(T* x, T by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
template __global__ void scale_NUMBER<float>(float*, float, int);
template __global__ void scale_NUMBER<double>(double*, double, int);
"""

DRIVER = """
typedef int CUresult;
#define CUDAAPI
#define cuMemAlloc cuMemAlloc_v2
CUresult CUDAAPI cuInit(unsigned flags);
CUresult CUDAAPI cuMemAlloc(void *place, unsigned long size);
"""


def test_another_build_with_the_same_flags_compiles_nothing(
    build: Build, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders, one cache: the second build finds every object, though its paths are different."""
    if not shutil.which("ccache"):
        pytest.skip("no ccache here")
    first = build(profile="minimal", overrides=("USE_THING=1",), ccache=True)
    second = build(profile="minimal", overrides=("USE_THING=2",), ccache=True)
    assert first.build != second.build
    assert first.hits is not None
    assert second.hits is not None
    assert first.hits.hits + first.hits.misses == 6, "the files of the project, without CMake's own tests"
    assert (second.hits.hits, second.hits.misses) == (6, 0)
    assert ledger.attempts()[-1].configuration["ccache_hits"] == 1


PYTHON_PART = """
add_library(torch_python SHARED torch/csrc/Module.cpp)
target_include_directories(torch_python PRIVATE ${PYTHON_INCLUDE})
target_link_libraries(torch_python torch_cpu)
install(TARGETS torch_python LIBRARY DESTINATION lib)
"""
MODULE = """
#include <Python.h>
extern "C" const char* python_of_headers() { return PY_VERSION; }
"""


def test_libtorch_is_compiled_once_for_all_pythons(
    build: Build, ledger: Ledger, project: Path, variant: Variant, tmp_path: Path
) -> None:
    """Another Python compiles what sees its headers and nothing else; each wheel holds its own part."""
    others = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != variant.python]
    found = [version for version in others if (path := find_base_python(version)) and has_headers(path)]
    if not found:
        pytest.skip("only one Python with its headers here")
    setup, lists = project / "setup.py", project / "CMakeLists.txt"
    include = "import sysconfig; PYTHON = f\"-DPYTHON_INCLUDE={sysconfig.get_path('include')}\""
    text = setup.read_text().replace("import subprocess\n", f"import subprocess\n{include}\n")
    setup.write_text(text.replace("*options, ", "*options, PYTHON, "))
    lists.write_text(lists.read_text() + PYTHON_PART)
    (project / "torch" / "csrc" / "Module.cpp").write_text(MODULE)
    compiled = []
    for python in (variant.python, found[0], variant.python):
        result = build(variant=replace(variant, python=python))
        assert result.wheel is not None
        assert f"cp{python.replace('.', '')}" in result.wheel.name
        names = re.findall(r"Building CXX object \S*/(\w+)\.cpp\.o", Path(ledger.attempts()[-1].log).read_text())
        compiled.append(sorted(names))
        place = tmp_path / f"unpacked-{len(compiled)}"
        zipfile.ZipFile(result.wheel).extractall(place)
        library = (place / "torch" / "lib" / "libtorch_python.so").read_bytes()
        assert re.findall(rb"\0(\d\.\d+)\.\d+\w*\0", library) == [python.encode()]
    assert compiled == [["Module", "a", "b", "big_0", "big_1", "c", "d"], ["Module"], ["Module"]]


def has_headers(python: Path) -> bool:
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    said = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    return Path(said.strip(), "Python.h").is_file()


def test_a_toolkit_of_wheels_has_a_driver_to_link_with(tmp_path: Path) -> None:
    """The wheels have no libcuda.so, and without one CMake has no CUDA::cuda_driver, which PyTorch links."""
    cc = shutil.which("cc")
    if not cc:
        pytest.skip("no C compiler here")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text(DRIVER)
    write_driver_stub(tmp_path, cc)
    program = tmp_path / "program.c"
    program.write_text(f"{DRIVER}\nint main(void) {{ return cuMemAlloc(0, 1); }}\n")
    stubs = tmp_path / "lib" / "stubs"
    subprocess.run([cc, program, f"-L{stubs}", "-lcuda", "-o", tmp_path / "program"], check=True)
    (stubs / "libcuda.so.1").symlink_to("libcuda.so")  # what the driver brings on a machine with a GPU
    ran = subprocess.run([tmp_path / "program"], env={"LD_LIBRARY_PATH": str(stubs)}, check=False)
    assert ran.returncode == 34


def test_a_compiler_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"libcuda\.so"):
        write_driver_stub(tmp_path, "false")


@pytest.mark.slow
@pytest.mark.network
def test_nvcc_of_wheels_compiles_for_two_gpus(tmp_path: Path) -> None:
    """The toolkit is made of wheels alone; cubins are those that were asked for; another ISA reuses them all."""
    folders = Folders(Path(os.environ.get("TORCHTAILOR_TEST_WORK") or tmp_path), tmp_path)
    tables = load_tables()
    python = find_base_python(running_python())
    assert python is not None
    line = "13.0"
    parts = ("nvcc", "crt", "runtime", "cccl")
    packages = [*(f"nvidia-cuda-{part}=={line}.*" for part in parts), f"nvidia-nvvm=={line}.*"]
    try:
        environment = make_environment(folders, tables, python)
        prefix = make_cuda(folders, tables, environment, Dotted(line), packages)
    except NetworkError as error:
        pytest.skip(error.message)
    nvcc = prefix.home / "bin" / "nvcc"
    ccache = shutil.which("ccache")
    for gpu in ("80", "90"):
        for isa in ("one", "two"):  # two builds in folders of their own, that differ in host flags only
            folder = tmp_path / f"{gpu}-{isa}"
            (folder / "src").mkdir(parents=True)
            shared = ccache_environment(ccache, folders, folder) if ccache else {}
            if ccache:
                prepare(shared)
            for number in range(10):
                source = folder / "src" / f"k{number}.cu"
                source.write_text(KERNEL.replace("NUMBER", str(number)))
                output = source.with_suffix(".cu.o")
                command = [*([ccache] if ccache else []), str(nvcc), f"-gencode=arch=compute_{gpu},code=sm_{gpu}", "-c"]
                subprocess.run(
                    [*command, str(source), "-o", str(output)],
                    env={"PATH": "/usr/bin:/bin", **shared},
                    cwd=folder / "src",
                    check=True,
                )
                found = {str(image.target) for image in scan_file(output).images}
                assert found == {f"sm_{gpu}"}
            if ccache:
                hits = read_hits(shared)
                assert hits is not None
                assert (hits.hits, hits.misses) == ((0, 10) if isa == "one" else (10, 0))
