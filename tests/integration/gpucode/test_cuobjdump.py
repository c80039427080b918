"""Real libraries from the configured index: we and NVIDIA's cuobjdump see the same images."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.gpucode.cuobjdump import compare
from tests.unit.gpucode.builders import FIXTURES
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.inspection.inspect import inspect
from torchtailor.verification.inspection.measure import measure
from torchtailor.verification.inspection.parts import ByteClass

pytestmark = [pytest.mark.network, pytest.mark.xdist_group("cuobjdump")]  # one worker downloads

CUOBJDUMP = "nvidia-cuda-cuobjdump==13.4.92"
# about 85 MB in all: raw images; containers in .rodata; plain nvcc code with PTX; a small one with a single container
PACKAGES = {
    "nvidia-curand-cu12==10.3.9.90": "libcurand.so",
    "nvidia-cuda-cupti-cu12==12.8.90": "libcupti.so",
    "torchvision==0.25.0": "_C",
    "nvidia-cufile-cu12==1.13.1.3": "libcufile.so",
}
WHOLLY_LISTED = ("nvidia-curand-cu12==10.3.9.90", "torchvision==0.25.0", "nvidia-cufile-cu12==1.13.1.3")
TAGS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def download(package: str, folder: Path, machine: str) -> Path:
    platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
    command += ["--python-version", "3.13", "--dest", str(folder), package]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"{package} could not be downloaded: {result.stderr.strip().splitlines()[-1:]}")
    prefix = package.split("==", maxsplit=1)[0].replace("-", "_")
    return next(folder.glob(f"{prefix}-*.whl"))


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's tool from its own package; nothing of CUDA has to be installed."""
    folder = tmp_path_factory.mktemp("cuobjdump")
    with zipfile.ZipFile(download(CUOBJDUMP, folder, platform.machine())) as archive:
        archive.extractall(folder)
    tool = next(folder.rglob("cuobjdump"))
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize("package", PACKAGES)
def test_real_libraries(package: str, cuobjdump: Path, tmp_path: Path) -> None:
    wheel = download(package, tmp_path, "x86_64")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    compared = 0
    for library in sorted(unpacked.rglob(f"{PACKAGES[package]}*")):
        found = compare(cuobjdump, library)
        assert found.own_sections == found.own_sections_theirs
        assert found.elsewhere == found.elsewhere_theirs
        compared += found.own_sections.total() + found.elsewhere.total()
    assert compared > 0
    packed, folder = inspect([wheel, unpacked]).artifacts
    assert {one.name: one for one in packed.libraries} == {one.name: one for one in folder.libraries}


@pytest.mark.parametrize("library", sorted(FIXTURES.glob("*.so")), ids=lambda path: str(path.name))
def test_small_libraries(library: Path, cuobjdump: Path) -> None:
    found = compare(cuobjdump, library)
    assert found.agrees
    assert found.own_sections.total() > 0


@pytest.mark.parametrize("package", PACKAGES)
def test_sizes_are_those_of_cuobjdump_and_readelf(package: str, cuobjdump: Path, tmp_path: Path) -> None:
    """The unpacked bytes of each architecture, and the bytes of all sections."""
    wheel = download(package, tmp_path, "x86_64")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    library = next(path for path in sorted((tmp_path / "unpacked").rglob("*.so*")) if PACKAGES[package] in path.name)
    sizes = measure(open_artifact(library), kernels=True)

    ours: Counter[str] = Counter()
    for row in sizes.kernels:
        if row.code.startswith("sm_"):
            ours[row.code] += row.size
    sections = {found.section for found in scan_file(library).containers}
    assert (sections == {".nv_fatbin"}) is (package in WHOLLY_LISTED)
    if package in WHOLLY_LISTED:
        extracted = tmp_path / "cubins"
        extracted.mkdir()
        subprocess.run([cuobjdump, "-xelf", "all", library], cwd=extracted, capture_output=True, check=True)
        theirs: Counter[str] = Counter()
        for cubin in extracted.glob("*.cubin"):
            theirs[cubin.name.rsplit(".", 2)[-2]] += cubin.stat().st_size
        assert ours == theirs

    if shutil.which("readelf") is None:
        pytest.skip("readelf not found")
    listed = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    rows = [line[6:].split() for line in listed.splitlines() if re.match(r"  \[[ \d]\d\] \.", line)]
    kinds = sizes.by(lambda row: row.kind.value)
    assert sizes.total == library.stat().st_size
    text = sum(int(one[4], 16) for one in rows if one[1] == "PROGBITS" and "X" in one[6])
    assert kinds[ByteClass.HOST.value].size == text
