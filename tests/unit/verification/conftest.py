"""Wheels of small real libraries: host code compiled by gcc, GPU code compiled by nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.wheels.builder import build_wheel
from torchtailor.code.binary.elf_headers import ElfMachine

HOST = Path(__file__).parents[2] / "fixtures" / "hostcode"
GPU = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture
def fat() -> bytes:
    """A library with code for eight architectures."""
    return (GPU / "raw.so").read_bytes()


@pytest.fixture
def stock(tmp_path: Path, fat: bytes) -> Path:
    """A stock wheel of torch in small."""
    return _torch(tmp_path / "stock", "x86_64", fat, "2.10.0", {})


@pytest.fixture
def arm_fat() -> bytes:
    """A library for aarch64 with code for five GPUs, twice."""
    code = container(*(Entry(bytes(range(256)) * 400, sm=sm) for sm in (80, 86, 90, 100, 120)))
    return elf(Place(".nv_fatbin", code + code), machine=ElfMachine.AARCH64)


@pytest.fixture
def arm_torch(tmp_path: Path, arm_fat: bytes) -> Path:
    """The same for aarch64."""
    version = {"torch/version.py": b"__version__ = '2.15.0+cu132'\n"}
    return _torch(tmp_path / "arm", "aarch64", arm_fat, "2.15.0", version)


def _torch(folder: Path, arch: str, cuda: bytes, version: str, more: dict[str, bytes]) -> Path:
    folder.mkdir()
    return build_wheel(
        folder,
        {
            "torch/__init__.py": b"",
            **more,
            "torch/lib/libtorch_cuda.so": cuda,
            "torch/lib/libtorch_cpu.so": (HOST / arch / "dispatched.so").read_bytes(),
            f"torch/_C.cpython-313-{arch}-linux-gnu.so": (HOST / arch / "startup_base.so").read_bytes(),
        },
        name="torch",
        version=version,
        tag=f"cp313-cp313-manylinux_2_28_{arch}",
    )
