"""A small stack in the shape of the real one: torch and its NVIDIA wheels with real GPU code, served as an index."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from tests.unit.fetch.packages import Package, html_index
from tests.unit.fetch.serving import Site

# A library made by nvcc with code for eight architectures.
FAT = (Path(__file__).parents[1] / "gpucode" / "fixtures" / "raw.so").read_bytes()

NOISE = random.Random(1).randbytes(300_000)  # something that is not cut and does not pack

TORCH_TAG = "cp313-cp313-manylinux_2_28_x86_64"
NVIDIA_TAG = "py3-none-manylinux2014_x86_64"
LINUX = "platform_system == 'Linux'"


def torch(python: str = "cp313", arch: str = "x86_64") -> Package:
    return Package(
        "torch",
        "2.8.0",
        (
            "filelock",
            f"nvidia-cuda-runtime-cu12==12.8.90; {LINUX} and platform_machine == 'x86_64'",
            f"nvidia-cublas-cu12==12.8.4.1; {LINUX} and platform_machine == 'x86_64'",
            f"nvidia-nccl-cu12==2.27.3; {LINUX} and platform_machine == 'x86_64'",
            f"triton==3.4.0; {LINUX} and platform_machine == 'x86_64'",
        ),
        f"{python}-{python}-manylinux_2_28_{arch}",
        files={
            "torch/__init__.py": b"from torch.version import __version__\n",
            "torch/version.py": b"__version__ = '2.8.0+cu128'\ncuda = '12.8'\n",
            "torch/lib/libtorch_cuda.so": FAT,
            "torch/share/noise.bin": NOISE,
        },
    )


def nvidia(name: str, version: str, licence: str = "NVIDIA Proprietary Software") -> Package:
    library = f"nvidia/{name.removeprefix('nvidia-').removesuffix('-cu12')}/lib/lib{name.split('-')[1]}.so.12"
    return Package(name, version, (), NVIDIA_TAG, files={library: FAT}, licence=licence)


def packages() -> list[Package]:
    return [
        torch(),
        torch(arch="aarch64"),
        nvidia("nvidia-cuda-runtime-cu12", "12.8.90"),
        nvidia("nvidia-cublas-cu12", "12.8.4.1"),
        nvidia("nvidia-nccl-cu12", "2.27.3", "BSD-3-Clause"),
        Package("filelock", "4.2"),
        Package("triton", "3.4.0", (), TORCH_TAG, files={"triton/backends/nvidia/lib/cupti/libcupti.so": FAT}),
        Package("torchvision", "0.23.0", ("torch==2.8.0",), TORCH_TAG, files={"torchvision/_C.so": FAT}),
        Package("torchvision", "0.30.0", ("torch==2.15.0",), TORCH_TAG, files={"torchvision/_C.so": FAT}),
    ]


@cache
def _index() -> dict[str, bytes]:
    return html_index(packages())


def fill(site: Site) -> Site:
    site.content |= _index()
    return site
