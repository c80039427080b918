"""Wheels of small real libraries: host code compiled by gcc, GPU code compiled by nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.wheels.builder import build_wheel
from torchtailor.gpucode.elf_headers import Machine

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


@pytest.fixture
def arm_fat() -> bytes:
    """A library for aarch64 with code for five GPUs, twice."""
    code = container(*(Entry(bytes(range(256)) * 400, sm=sm) for sm in (80, 86, 90, 100, 120)))
    return elf(Place(".nv_fatbin", code + code), machine=Machine.AARCH64)


@pytest.fixture
def arm_torch(tmp_path: Path, arm_fat: bytes) -> Path:
    """The same for aarch64."""
    folder = tmp_path / "arm"
    folder.mkdir()
    return build_wheel(
        folder,
        {
            "torch/__init__.py": b"",
            "torch/version.py": b"__version__ = '2.15.0+cu132'\n",
            "torch/lib/libtorch_cuda.so": arm_fat,
            "torch/lib/libtorch_cpu.so": (HOST / "aarch64" / "dispatched.so").read_bytes(),
            "torch/_C.cpython-313-aarch64-linux-gnu.so": (HOST / "aarch64" / "startup_base.so").read_bytes(),
        },
        name="torch",
        version="2.15.0",
        tag="cp313-cp313-manylinux_2_28_aarch64",
    )
