"""Libraries that nvcc made with relocatable device code: what stays is what the driver uses, as seen on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.oracle.fixtures import ARCHIVE
from tests.tars import unpack_tar
from tests.unit.surgery.checks import RULES, options
from torchtailor.catalog import Capability
from torchtailor.code.gpucode.fitness import gpu_fit, kept_bytes
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="the libraries are not in this checkout")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_tar(ARCHIVE, tmp_path_factory.mktemp("rdc"))


@pytest.mark.parametrize(
    ("name", "target", "kept", "verdict"),
    [
        ("rdc-sm80-ptx80-x86_64", "8.0", "sm_80", "native"),
        ("rdc-sm80-ptx80-x86_64", "9.0", "compute_80", "JIT link from PTX 8.0"),
        ("rdc-sm80-ptx80-aarch64", "12.0", "compute_80", "JIT link from PTX 8.0"),
        ("rdc-sm75-sm90-ptx75-x86_64", "8.0", "compute_75", "JIT link from PTX 7.5"),
        ("rdc-sm75-sm90-ptx75-x86_64", "9.0", "sm_90", "native"),
        ("rdc-sm90a-ptx90-x86_64", "12.0", "compute_90", "JIT link from PTX 9.0"),
        ("rdc-linked-less-x86_64", "9.0", "sm_90", "JIT link from cubins for 9.0"),
        ("rdc-linked-less-ptx-x86_64", "12.0", "compute_80", "JIT link from PTX 8.0"),
        ("rdc-lto80-ptx80-x86_64", "9.0", "compute_80", "JIT link from PTX 8.0"),
        ("rdc-reloc-ptx-x86_64", "9.0", "compute_80", "JIT from PTX 8.0"),
        ("rdc-two-links-x86_64", "9.0", "compute_80 sm_90", "JIT link from cubins for 9.0"),
        ("rdc-zstd-x86_64", "12.0", "compute_80", "JIT link from PTX 8.0"),
        ("rdc-lz4-x86_64", "12.0", "compute_80", "JIT link from PTX 8.0"),
    ],
)
def test_what_stays(libraries: Path, tmp_path: Path, name: str, target: str, kept: str, verdict: str) -> None:
    stock = libraries / f"{name}.so"
    result = tailor_library(stock, tmp_path / "out.so", options(target))
    assert (result.status, " ".join(sorted(result.kept)), result.warnings) == (LibraryStatus.CUT, kept, ())
    before, after = (summarise(path.name, scan_file(path)) for path in (stock, tmp_path / "out.so"))
    device = Capability.parse(target)
    assert gpu_fit(before, device, RULES).verdict == gpu_fit(after, device, RULES).verdict == verdict
    assert kept_bytes(before, options(target).policy) == result.gpu_after == after.stored


@pytest.mark.parametrize("name", ["rdc-sm80-x86_64", "rdc-lto80-x86_64"])
def test_objects_that_the_driver_cannot_link(libraries: Path, name: str) -> None:
    result = tailor_library(libraries / f"{name}.so", None, options("9.0"))
    assert result.status is LibraryStatus.NOTHING_FOR_TARGET


def test_kept_ptx(libraries: Path) -> None:
    result = tailor_library(libraries / "rdc-sm80-ptx80-x86_64.so", None, options("8.0", keep_ptx=True))
    assert set(result.kept) == {"sm_80", "compute_80"}
