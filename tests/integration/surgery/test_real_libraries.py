"""NVIDIA's libraries from the configured index, tailored and loaded: every pointer leads where it led."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.gpucode.test_cuobjdump import cuobjdump, download  # noqa: F401  (a fixture)
from tests.unit.surgery.checks import options
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.xdist_group("cuobjdump")]

ROOT = Path(__file__).parents[3]
# raw images behind wrappers; 23,531 containers that code names by 64-bit immediates; images in .rodata, pinned
PACKAGES = {
    "nvidia-curand-cu12==10.3.9.90": ("libcurand.so.10", 0.40, 10),
    "nvidia-cufft-cu12==11.3.3.83": ("libcufft.so.11", 0.85, 23_531),
    "nvidia-cuda-cupti-cu12==12.8.90": ("libcupti.so.12", 0.99, 0),
}


def pointers(library: Path) -> list[list[int]]:
    """The pointers to containers in the memory of a process that loaded the library."""
    command = [sys.executable, "-m", "tests.integration.surgery.inside", str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    found: list[list[int]] = json.loads(result.stdout)
    return found


@pytest.mark.skipif(platform.machine() != "x86_64", reason="loads x86_64 libraries")
@pytest.mark.parametrize("package", PACKAGES)
def test_every_pointer_leads_where_it_led(
    package: str,
    cuobjdump: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    name, most, expected = PACKAGES[package]
    with zipfile.ZipFile(download(package, tmp_path, "x86_64")) as archive:
        archive.extractall(tmp_path)
    stock = next(tmp_path.rglob(name))
    tailored = tmp_path / "tailored" / name
    result = tailor_library(stock, tailored, options("9.0"))
    assert result.status is LibraryStatus.CUT
    assert result.size_after < most * result.size_before
    before = pointers(stock)
    assert len({number for _, number in before}) >= expected
    assert pointers(tailored) == before

    listed = subprocess.run([cuobjdump, "-all", tailored], capture_output=True, text=True, check=False)
    ours = Counter(i.label for f in scan_file(tailored).containers if f.section == ".nv_fatbin" for i in f.images)
    assert listed.stdout.count("Fatbin elf code:") == sum(n for label, n in ours.items() if label.startswith("sm_"))

    for tool, *arguments in (("strip",), ("patchelf", "--set-rpath", "$ORIGIN/" + "far/" * 40)):
        if shutil.which(tool):
            subprocess.run([tool, *arguments, tailored], check=True)
            assert pointers(tailored) == before, tool
