"""The hook as releases have it: compiled by ziglang for both architectures, and a wheel that carries it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.workload.rig import NEEDED, PRELOAD, ROOT


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.so*"))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_releases_are_reproducible_and_run_on_old_systems(tmp_path: Path) -> None:
    if not importlib.util.find_spec("ziglang"):
        pytest.skip("ziglang not installed")
    copy = tmp_path / "another" / "place"
    for part in ("tools/build_hook.py", "src/torchtailor/workload/native"):
        source, target = ROOT / part, copy / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    for tool, into in ((ROOT, tmp_path / "a"), (copy, tmp_path / "b")):
        subprocess.run([sys.executable, tool / "tools" / "build_hook.py", "--into", into], check=True)
    names = {f"{arch}/{name}" for arch in ("x86_64", "aarch64") for name in (NEEDED, PRELOAD)}
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert set(digests(tmp_path / "a")) == names
    for name in names:
        text = subprocess.run(
            ["readelf", "-VW", tmp_path / "a" / name], capture_output=True, text=True, check=True
        ).stdout
        needs = text[text.index("Version needs section") :]
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", needs)}
        assert max(versions) <= (2, 17), name


@pytest.mark.slow
def test_a_wheel_carries_what_was_compiled(tmp_path: Path) -> None:
    """Of a copy of the sources, in which something was compiled, or nothing yet."""
    if not shutil.which("cc"):
        pytest.skip("cc not found")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    (source / "docs").mkdir()
    (source / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "build_hook.py", source / "tools")
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path / "out"),
        str(source),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling cannot be installed")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if "/native/" in name}

    native = "torchtailor/workload/native"
    assert {f"{native}/{os.uname().machine}/{name}" for name in (NEEDED, PRELOAD)} | {f"{native}/renamed.txt"} < names
