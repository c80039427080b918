"""A package whose libraries were linked with NVIDIA's loads without them after `--gpu none`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.calling import call
from tests.tars import unpack_tar
from tests.unit.fetch.packages import Package
from tests.unit.oci.builder import read_image, stock, tar_of
from tests.unit.tailoring.helpers import check_records, install, tree
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.inputs import tailor
from torchtailor.tailoring.restore import restore_environment

CUBLAS = "int cublasCreate(void) { return 0; }\nint cublasTable[4] = {1, 2, 3, 4};\n"
MADE = ("libcublas.so.13", "libnccl.so.2")
NCCL = "int ncclInit(void) { return 0; }\n"
ASKING = """
extern int cublasCreate(void), ncclInit(void), cublasTable[4];
int create(void) { return cublasCreate(); }
int init(void) { return ncclInit(); }
int *table(void) { return cublasTable; }
"""
FINDING = "extern int cublasCreate(void);\nint create(void) { return cublasCreate(); }\n"
FINDS = """
import ctypes, sys
from importlib.metadata import distribution
from pathlib import Path
import nvidia.cublas
(path,) = [file.locate() for file in distribution("nvidia-cublas").files if file.name == "libcublas.so.13"]
assert Path(path) == Path(nvidia.cublas.__file__).parent / "lib/libcublas.so.13"
ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
print(ctypes.CDLL(sys.argv[1]).create())
"""
LOADS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert (library.create(), library.create(), library.init()) == (1, 1, 1)
library.table.restype = ctypes.POINTER(ctypes.c_int)
assert library.table()[3] == 0
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler (cc) is installed")
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "map").write_text("libcublas.so.13 { global: *; };\n")
    for name, source, flags in [
        ("libcublas.so.13", CUBLAS, ["-Wl,--version-script=map"]),
        ("libnccl.so.2", NCCL, []),
        ("libasking.so", ASKING, ["libcublas.so.13", "libnccl.so.2", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN"]),
        ("libfinding.so", FINDING, ["libcublas.so.13", "-Wl,-z,now"]),
    ]:
        (folder / f"{name}.c").write_text(source)
        line = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, f"{name}.c", *flags]
        subprocess.run(line, cwd=folder, check=True)
    files = {"asking/__init__.py": b"", "asking/libasking.so": (folder / "libasking.so").read_bytes()}
    tag = f"py3-none-linux_{platform.machine()}"
    package = Package("asking", "1.0", ("nvidia-cublas==13.0", "nvidia-nccl-cu13"), tag, files=files)
    path = tmp_path / package.filename
    path.write_bytes(package.wheel())
    return path


def loaded(library: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LOADS, library], capture_output=True, text=True, check=False)


def test_it_loads_and_says_what_is_not_there(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path / "stock", "zip")
    assert "libcublas.so.13" in loaded(tmp_path / "stock/asking/libasking.so").stderr
    (result,) = tailor(wheel, gpus="none", output=tmp_path / "out")
    assert result.output is not None
    assert {one.path: one.symbols for one in result.stand_ins} == {
        "asking/libcublas.so.13": 2,
        "asking/libnccl.so.2": 1,
    }
    shutil.unpack_archive(result.output, tmp_path / "cut", "zip")
    done = loaded(tmp_path / "cut/asking/libasking.so")
    sentence = "torchtailor: asking was cut for machines without a GPU (--gpu none): {} is not there.\n"
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == sentence.format("libcublas.so.13") + sentence.format("libnccl.so.2")


def test_an_environment_gets_them_and_gives_them_back(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "env/lib/python3.13/site-packages"
    install(wheel, site)
    libraries = {f"nvidia/cu13/lib/{name}": (tmp_path / "linked" / name).read_bytes() for name in MADE}
    nvidia = Package("nvidia-cublas", "13.0", files=libraries, licence="NVIDIA Proprietary Software")
    (tmp_path / nvidia.filename).write_bytes(nvidia.wheel())
    install(tmp_path / nvidia.filename, site)
    install_nccl = Package("nvidia-nccl-cu13", "2.0", files={"nvidia/nccl.txt": b""})
    (tmp_path / install_nccl.filename).write_bytes(install_nccl.wheel())
    install(tmp_path / install_nccl.filename, site)
    before = tree(site)
    cut = Cut(Targets(()), rules=load_catalog().rules, keep_removed=True)
    result = tailor_environment(site, cut)
    assert result.gone_packages == ("nvidia-cublas", "nvidia-nccl-cu13")
    assert {path for path in tree(site) if path.startswith("nvidia/")} == set()
    check_records(site)
    done = loaded(site / "asking/libasking.so")
    assert (done.returncode, done.stdout) == (0, "")
    assert not tailor_environment(site, cut).differs
    assert not restore_environment(site).commands
    assert tree(site) == before


@pytest.mark.parametrize("kind", ["wheel", "image"])
def test_it_names_the_build_for_the_cpu_where_there_is_one(wheel: Path, tmp_path: Path, kind: str) -> None:
    index = tmp_path / "index"
    index.mkdir()
    cpu = Package("asking", "1.0+cpu", tag=f"py3-none-linux_{platform.machine()}")
    for one in (cpu, replace(cpu, version="1.1+cpu"), replace(cpu, version="1.0", tag="py3-none-any")):
        (index / one.filename).write_bytes(one.wheel())
    line: list[str | Path] = ["tailor", wheel, "--gpu", "none", "-o", tmp_path / "out"]
    if kind == "image":
        site = tmp_path / "usr/lib/python3.13/site-packages"
        install(wheel, site)
        files = [path for path in sorted(site.rglob("*")) if path.is_file()]
        layer = tar_of({path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files})
        line = ["image", stock(tmp_path / "stock", [layer]), f"oci:{tmp_path / 'cut'}:latest", "--gpu", "none"]
    settings = {"PIP_INDEX_URL": index.as_uri(), "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    done = call(*line, environment={**os.environ, **settings})
    assert done.returncode == 0
    assert f"has {cpu.filename}: `pip install asking==1.0+cpu` gives a build for the CPU without a cut." in " ".join(
        done.stdout.split()
    )
    unreachable = {**settings, "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_FIND_LINKS": ""}
    done = call(*line, environment={**os.environ, **unreachable})
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install" not in done.stdout


def found(site: Path) -> subprocess.CompletedProcess[str]:
    """What a package does that finds cuBLAS through that one's metadata, as faiss-gpu-cu12 does."""
    line: list[str | Path] = [sys.executable, "-Bc", FINDS, site / "finding/libfinding.so"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["environment", "folder", "image"])
def test_one_that_is_found_by_its_package_lies_there(wheel: Path, tmp_path: Path, kind: str) -> None:
    """faiss-gpu-cu12 could not be imported after the cut: it asks for the metadata of nvidia-cublas-cu12."""
    place = "usr/lib/python3.13/site-packages"
    site = tmp_path / "root" / place
    linked = wheel.parent / "linked"
    modules = dict.fromkeys(("nvidia/__init__.py", "nvidia/cublas/__init__.py"), b"")
    cublas = {**modules, "nvidia/cublas/include/cublas.h": b"//", "nvidia/cublas/lib/libcublas.so.13": b""}
    cublas["nvidia/cublas/lib/libcublas.so.13"] = (linked / "libcublas.so.13").read_bytes()
    finding = {"finding/libfinding.so": (linked / "libfinding.so").read_bytes()}
    for package in (
        Package("nvidia-cublas", "13.0", ("nvidia-cuda-nvrtc",), files=cublas, licence="NVIDIA Proprietary Software"),
        Package("nvidia-cuda-nvrtc", "13.0", files={"nvidia/nvrtc/nvrtc.h": b"//"}),
        Package("finding", "1.0", ("nvidia-cublas>=13", 'nvidia-cublas==13.0; extra == "fix"'), files=finding),
    ):
        path = tmp_path / package.filename
        path.write_bytes(package.wheel())
        install(path, site)
    assert (found(site).stdout, found(site).stderr) == ("0\n", "")
    before = tree(site)
    cut = Cut(Targets(()), rules=load_catalog().rules, keep_removed=True)
    if kind == "environment":
        tried = tailor_environment(site, replace(cut, dry_run=True))
        gone = tailor_environment(site, cut)
        assert (tried.dropped_files, tried.stand_ins) == (gone.dropped_files, gone.stand_ins)
        assert not gone.libraries[1:]  # the one that left is not reported as one that stays
        made = site
    elif kind == "folder":
        (gone,) = tailor(site, gpus="none", output=tmp_path / "out")
        made = tmp_path / "out"
    else:
        files = [path for path in sorted(site.rglob("*")) if path.is_file()]
        of_cublas = [path for path in files if "cublas" in path.as_posix()]
        layers = [
            tar_of({path.relative_to(tmp_path / "root").as_posix(): path.read_bytes() for path in each})
            for each in (of_cublas, [path for path in files if path not in of_cublas])
        ]
        report = cut_image(stock(tmp_path / "stock", layers), f"oci:{tmp_path / 'cut'}:latest", ImageOptions(cut))
        (image,) = report.images
        for layer in read_image(tmp_path / "cut").tars:
            unpack_tar(layer, tmp_path / "unpacked")
        made = tmp_path / "unpacked" / place
    said = image if kind == "image" else gone
    assert said.gone_packages == ("nvidia-cuda-nvrtc",)
    assert said.changed_requirements == {"nvidia-cuda-nvrtc": None}
    assert [one.path.removeprefix(f"{place}/") for one in said.stand_ins] == ["nvidia/cublas/lib/libcublas.so.13"]
    assert {Path(one.path).name for one in said.dropped_files} >= {"cublas.h", "libcublas.so.13", "nvrtc.h"}
    left = {path for path in tree(made) if path.startswith("nvidia/")}
    assert left == {*modules, "nvidia/cublas/lib/libcublas.so.13"}
    check_records(made)
    done = found(made)
    sentence = (
        "torchtailor: nvidia-cublas was cut for machines without a GPU (--gpu none): libcublas.so.13 is not there.\n"
    )
    assert (done.stdout, done.stderr) == ("1\n", sentence)
    required = [line for path in made.glob("*.dist-info/METADATA") for line in path.read_text().splitlines()]
    assert sorted(line for line in required if line.startswith("Requires-Dist: nvidia")) == [
        'Requires-Dist: nvidia-cublas==13.0; extra == "fix"',
        "Requires-Dist: nvidia-cublas>=13",
    ]
    if kind == "environment":
        assert not tailor_environment(site, cut).differs
        assert not restore_environment(site).commands
        assert tree(site) == before
