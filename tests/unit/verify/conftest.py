"""Wheels of small real libraries: host code compiled by gcc, GPU code compiled by nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.wheels.builder import build_wheel

HOST = Path(__file__).parents[2] / "fixtures" / "hostcode"
GPU = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def fat() -> bytes:
    """A library with code for eight architectures."""
    return (GPU / "raw.so").read_bytes()


@pytest.fixture
def stock(tmp_path: Path, fat: bytes) -> Path:
    """A stock wheel of torch in small."""
    folder = tmp_path / "stock"
    folder.mkdir()
    return build_wheel(
        folder,
        {
            "torch/__init__.py": b"",
            "torch/lib/libtorch_cuda.so": fat,
            "torch/lib/libtorch_cpu.so": (HOST / "x86_64" / "dispatched.so").read_bytes(),
            "torch/_C.cpython-313-x86_64-linux-gnu.so": (HOST / "x86_64" / "startup_base.so").read_bytes(),
        },
        name="torch",
        version="2.10.0",
        tag="cp313-cp313-manylinux_2_28_x86_64",
    )
