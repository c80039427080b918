"""Real wheels in, whole stacks out: for this machine, for an H100 elsewhere, for a GB10 on ARM.

They take minutes and gigabytes. Wheels that are already at hand can be named in TORCHTAILOR_TEST_WHEELS (folders,
separated by colons); others are fetched once in a run, or once into the folder that TORCHTAILOR_TEST_CACHE names.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.building.pips import pip_on
from torchtailor.core.pythons import find_python, find_uv
from torchtailor.verification.inspection.inspect import inspect
from torchtailor.wheelhouse.install import import_torch

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.usefixtures("shared_cache")]


def torchtailor(*words: str, out: Path) -> Any:
    """Run a command with --json; what it says."""
    folders = [word for word in os.environ.get("TORCHTAILOR_TEST_WHEELS", "").split(":") if word]
    links = [item for folder in folders for item in ("--find-links", folder)]
    line = [sys.executable, "-m", "torchtailor", *words, *links, "-o", str(out), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def python_313() -> Path:
    return find_python("3.13") or pytest.skip("needs a Python 3.13")


def clean() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "PIP_NO_CACHE_DIR": "1"}


def test_this_machine_ends_with_a_torch_that_imports(tmp_path: Path) -> None:
    answer = torchtailor("install", "--into", str(tmp_path / "env"), out=tmp_path / "dist")
    installed = answer["installed"]
    assert installed["version"]
    found = import_torch(tmp_path / "env")
    assert found.version == installed["version"]
    assert found.python.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")


def foreign_cubins(folder: Path, own: str) -> dict[str, set[str]]:
    """Libraries that hold code for the target and also for other GPUs."""
    found = {}
    for library in inspect(folder / "wheels", processes=2).libraries:
        cubins = {group.label for group in library.architectures if group.label.startswith("sm_")}
        if own in cubins and (others := cubins - {own, f"{own}a"}):
            found[library.name] = others
    return found


def pip_resolution(index: str, arch: str) -> dict[str, str]:
    platforms = [word for tag in ("manylinux_2_28", "manylinux2014") for word in ("--platform", f"{tag}_{arch}")]
    between = [word for minor in range(5, 28) for word in ("--platform", f"manylinux_2_{minor}_{arch}")]
    done = subprocess.run(
        [str(python_313()), *pip_on(arch), "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-",
         "--target", "unused", "--only-binary", ":all:", *platforms, *between, "--python-version", "3.13",
         "--implementation", "cp", "--index-url", index, "torch"],
        env=clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {item["metadata"]["name"]: item["download_info"]["url"] for item in json.loads(done.stdout)["install"]}


def test_a_whole_x86_64_stack_for_an_h100(tmp_path: Path) -> None:
    words = ("build", "pytorch-python313-cuda12_8-sm90-avx512", "--release", "main", "--nvidia")
    answer = torchtailor(*words, out=tmp_path)
    (house,) = answer["wheelhouses"]
    assert house["output_bytes"] < house["input_bytes"] * 0.6
    found = pip_resolution(house["index_url"], "x86_64")
    assert len(found) > 15
    assert all(url.startswith(tmp_path.as_uri()) for url in found.values())
    assert "2.8.0%2Bcu128.sm90" in found["torch"]
    assert foreign_cubins(Path(house["path"]), "sm_90") == {}


def test_an_aarch64_stack_for_a_gb10_made_on_any_machine(tmp_path: Path) -> None:
    words = ("build", "pytorch215-python313-cuda13_2-sm121-armv9")
    answer = torchtailor(*words, out=tmp_path)
    (house,) = answer["wheelhouses"]
    found = pip_resolution(house["index_url"], "aarch64")
    assert found["torch"].endswith("torch-2.15.0%2Bcu132.sm121-cp313-cp313-manylinux_2_28_aarch64.whl")
    assert all(url.startswith(tmp_path.as_uri()) for url in found.values())


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_cuda_build_for_this_platform_is_installed_and_calculates(tmp_path: Path, installer: str) -> None:
    isa, gpu = {"x86_64": ("avx2", "sm120"), "aarch64": ("armv8_2", "sm121")}[platform.machine()]
    answer = torchtailor("build", f"{gpu}-{isa}", "--release", "2.15", "--python", "3.13", out=tmp_path / "dist")
    (house,) = answer["wheelhouses"]
    environment, torch = tmp_path / "env", f"torch=={house['torch']}"
    subprocess.run([str(python_313()), "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    line = {
        "pip": [python, "-m", "pip", "install", "--quiet", "--index-url", house["index_url"], torch],
        "uv": [
            find_uv() or "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--default-index",
            house["index_url"],
            torch,
        ],
    }[installer]
    done = subprocess.run(
        line, env=clean() | {"UV_CACHE_DIR": str(tmp_path / "uv")}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = import_torch(environment)
    assert (found.version, found.cuda) == ("2.15.0+cu132", "13.2")
