"""Libraries of relocatable device code, whose objects the driver links: what was lost of them is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.verification.test_static import failures, line, prove, tailored
from tests.unit.wheels.builder import build_wheel
from torchtailor.code.gpucode.policy import KeptCode, Kernels, Policy
from torchtailor.code.gpucode.scan import CodeContainer
from torchtailor.verification.result import CheckOutcome

PTX = 1
NAME = "GPU code for sm90: libx.so"


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """Linked for 8.0; on 9.0 the driver links the PTX of two objects. Its place in the wheel has the version in it."""
    objects = (Entry(bytes(20_000), sm=80), Entry(bytes(20_000), kind=PTX, sm=80))
    data = library(Recipe(linked=[(Entry(bytes(20_000), sm=80),)], relocatable=[objects, objects]))
    (tmp_path / "stock").mkdir()
    return build_wheel(tmp_path / "stock", {"demo-1.0.data/platlib/demo/libx.so": data, "demo/__init__.py": b""})


def test_a_cut_keeps_what_the_driver_links(stock: Path, tmp_path: Path) -> None:
    proof = prove(tailored(stock, "9.0", tmp_path), gpus=["9.0"], against=stock)
    assert not [name for name in failures(proof) if name.startswith(("GPU code", "coverage", "manifest", "RECORD"))]
    assert "JIT link from PTX 8.0" in line(proof, NAME).reason
    assert "all 2 images that sm90 uses" in line(proof, "coverage against stock").reason


@pytest.fixture
def emptied(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a policy that takes the objects for unused would have cut, and a proof that trusts it."""

    def nothing(policy: Policy, containers: Sequence[CodeContainer], kernels: Kernels) -> KeptCode:
        return KeptCode(((),) * len(containers), frozenset(policy.devices))

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "keep", nothing)
        patch.setattr(Policy, "for_each", lambda policy, containers: [None] * len(containers))
        patch.setattr("torchtailor.surgery.proof.code.lost_code", lambda *_: ())
        return tailored(stock, "9.0", tmp_path)


def test_an_emptied_library_fails_against_stock(emptied: Path, stock: Path) -> None:
    proof = prove(emptied, gpus=["9.0"], against=stock)
    lost = line(proof, "coverage: libx.so")
    assert lost.failed
    assert (lost.details["lost"], lost.details["needed"]) == (2, 2)
    assert line(proof, NAME).failed


def test_an_emptied_library_fails_without_stock(emptied: Path) -> None:
    """Its manifest lists what was dropped."""
    check = line(prove(emptied), NAME)
    assert check.failed
    assert "holds nothing" in check.reason


def test_empty_containers_that_nobody_cut(tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(library(Recipe(wrapped=[()])))
    (tmp_path / "liby.so").write_bytes(library(Recipe(wrapped=[(Entry(bytes(2000), sm=90),)])))
    assert line(prove(tmp_path, gpus=["9.0"]), NAME).outcome is CheckOutcome.NOT_APPLICABLE
