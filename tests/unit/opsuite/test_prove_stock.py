"""What tools/gpu/prove.sh copies: torch and its CUDA libraries, whole, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.tailoring.helpers import install
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main

TOOL = Path(__file__).parents[3] / "tools" / "gpu" / "stock.py"
LIBRARY = Path(__file__).parents[2] / "fixtures" / "hostcode" / "aarch64" / "dispatched.so"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stock", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder of a system Python, as Debian calls it, with more than torch in it."""
    site = tmp_path / "usr" / "lib" / "python3.12" / "dist-packages"
    library = LIBRARY.read_bytes()
    packages = {
        ("torch", "2.15.0"): {"torch/__init__.py": b"", "torch/version.py": b"", "torch/lib/libtorch_cpu.so": library},
        ("cuda-toolkit", "13.2.2"): {"cuda_toolkit/__init__.py": b""},
        ("nvidia-cublas", "13.4.1.3"): {"nvidia/cu13/lib/libcublas.so.13": library},
        ("nvidia-ml-py", "13.1"): {"pynvml.py": b""},
        ("numpy", "2.3"): {"numpy/__init__.py": b""},
    }
    requires = {
        "torch": "Requires-Dist: cuda-toolkit[cublas]==13.2.2\nRequires-Dist: numpy\n",
        "cuda-toolkit": "Requires-Dist: nvidia_cublas==13.4.*; extra == 'cublas'\n",
    }
    for (name, version), files in packages.items():
        install(build_wheel(tmp_path, files, name=name, version=version, metadata=requires.get(name, "")), site)
    record = next(site.glob("torch-*.dist-info")) / "RECORD"
    script = tmp_path / "usr" / "bin" / "torchrun"
    script.parent.mkdir()
    script.write_text("#!/usr/bin/python3\n")
    text = record.read_text() + "../../../bin/torchrun,,19\ntorch/__pycache__/gone.cpython-312.pyc,,\n"
    record.write_bytes(text.encode())
    (site / "torch" / "left_behind.txt").touch()
    return site


def test_the_copy_is_whole(tool: ModuleType, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "stock"
    assert tool.copy_stock(site, copy) == ("cuda-toolkit", "nvidia-cublas", "torch")
    assert (copy / "bin" / "torchrun").is_file()
    packages = tool.site_of(copy)
    assert not [name for name in ("pynvml.py", "numpy", "torch/left_behind.txt") if (packages / name).exists()]
    assert len(list(packages.glob("*.dist-info"))) == 3
    assert main(["verify", str(copy), "--level", "static", "--against", str(copy)]) == 0
    assert "files of 3 packages are there with their sizes, 2 libraries with their hashes" in capsys.readouterr().out


def test_a_file_with_no_place_in_the_copy(tool: ModuleType, site: Path, tmp_path: Path) -> None:
    record = next(site.glob("torch-*.dist-info")) / "RECORD"
    record.write_text(record.read_text() + "../../../../etc/torch.conf,,\n")
    with pytest.raises(ValueError, match=r"etc/torch\.conf"):
        tool.copy_stock(site, tmp_path / "stock")
