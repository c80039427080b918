"""What `inspect` says a cut would keep is what `tailor` keeps: both ask the same policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.gpucode.builders import ARCH, BASE_FLAGS, FAMILY, FIXTURES, Entry, Place, elf
from tests.unit.surgery.checks import options, policy
from tests.unit.surgery.libraries import Recipe, library
from torchtailor.code.gpucode.fitness import kept_bytes
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

CUBIN, PTX, LTOIR, UNKNOWN = 2, 1, 8, 99


def code(kind: int, sm: int, suffix: int, size: int) -> Entry:
    """A real cubin with one kernel, so that the lesser ones of a container can go; anything else is opaque."""
    payload = elf(Place(".text.kernel", bytes(size)), machine=190) if kind == CUBIN else bytes(size)
    return Entry(payload, kind=kind, sm=sm, flags=BASE_FLAGS | suffix)


SMS = st.sampled_from((50, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121))
CODES = st.builds(
    code,
    kind=st.sampled_from((CUBIN, CUBIN, CUBIN, PTX, LTOIR, UNKNOWN)),
    sm=SMS,
    suffix=st.sampled_from((0, 0, 0, ARCH, FAMILY)),
    size=st.integers(1, 9000),
)
CONTAINERS = st.lists(st.lists(CODES, max_size=6).map(tuple), max_size=4)


def check(stock: Path, output: Path, targets: str, *, keep_ptx: bool) -> None:
    report = summarise(stock.name, scan_file(stock))
    promised = kept_bytes(report, policy(targets, keep_ptx=keep_ptx))
    result = tailor_library(stock, output, options(targets, keep_ptx=keep_ptx))
    if result.status is LibraryStatus.CUT:
        assert result.gpu_after == promised
    elif result.status is LibraryStatus.NOTHING_FOR_TARGET:
        assert promised == report.stored


@settings(max_examples=examples(120), deadline=None)
@given(
    wrapped=CONTAINERS,
    linked=st.lists(st.lists(CODES, max_size=4).map(tuple), max_size=2),
    relocatable=CONTAINERS,
    hidden=CONTAINERS,
    targets=st.sampled_from(("9.0", "8.0", "8.9", "8.7", "12.1", "8.6,12.0", "10.3", "7.5,9.0")),
    name=st.sampled_from(("libtest.so", "libcublas.so.12")),
    keep_ptx=st.booleans(),
)
def test_any_library(
    tmp_path_factory: pytest.TempPathFactory,
    wrapped: list[tuple[Entry, ...]],
    linked: list[tuple[Entry, ...]],
    relocatable: list[tuple[Entry, ...]],
    hidden: list[tuple[Entry, ...]],
    targets: str,
    name: str,
    keep_ptx: bool,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / name).write_bytes(library(Recipe(wrapped=wrapped, linked=linked, relocatable=relocatable, hidden=hidden)))
    check(folder / name, folder / "out.so", targets, keep_ptx=keep_ptx)


@pytest.mark.parametrize("keep_ptx", [False, True])
@pytest.mark.parametrize("targets", ["8.0", "9.0", "12.0", "8.9,10.0"])
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.so")), ids=lambda path: path.name)
def test_what_nvcc_made(tmp_path: Path, path: Path, targets: str, keep_ptx: bool) -> None:
    check(path, tmp_path / "out.so", targets, keep_ptx=keep_ptx)


def test_a_renamed_library_of_nvidias(tmp_path: Path) -> None:
    """Known by its soname: `inspect` and `tailor` both keep every minor."""
    images = tuple(code(CUBIN, sm, 0, 9000) for sm in (80, 86, 90))
    stock = tmp_path / "renamed.so"
    stock.write_bytes(library(Recipe(wrapped=[images])).replace(b"libtest.so\0", b"libnccl.so\0"))
    assert summarise(stock.name, scan_file(stock)).soname == "libnccl.so"
    check(stock, tmp_path / "out.so", "8.6", keep_ptx=False)
    assert set(tailor_library(stock, None, options("8.6")).kept) == {"sm_80", "sm_86"}


def test_link_time_code_for_one_architecture(tmp_path: Path) -> None:
    """nvJitLink can use lto_90a on 9.0 only."""
    stock = tmp_path / "libtest.so"
    stock.write_bytes(library(Recipe(wrapped=[(code(LTOIR, 90, ARCH, 9000), code(CUBIN, 100, 0, 9000))])))
    check(stock, tmp_path / "out.so", "10.0", keep_ptx=False)
    assert set(tailor_library(stock, None, options("10.0")).kept) == {"sm_100"}
