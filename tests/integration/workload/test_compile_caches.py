"""Compile caches of a real torch.compile: made in one folder, used from another, with a compiler that counts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchtailor.cli import main

PROGRAM = """
import torch

@torch.compile
def f(x, y):
    return torch.relu(x @ y).sum(0) + torch.sin(x).mean()

with torch.no_grad():
    print(f(torch.ones(16, 16), torch.ones(16, 16)).sum().item())
"""
COMPILER = """#!/bin/sh
echo "$@" >> {log}
exec {compiler} "$@"
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment of its own with torch."""
    wheel = next(Path("/opt/wheels").glob(f"torch-*cp{sys.version_info[0]}{sys.version_info[1]}-*.whl"), None)
    if wheel is None or not shutil.which("g++"):
        pytest.skip("no wheel of torch in /opt/wheels, or no g++")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    pip = [str(tmp_path / "env/bin/python"), "-m", "pip", "install", "-q", str(wheel)]
    if subprocess.run(pip, check=False, capture_output=True).returncode:
        pytest.skip("what torch needs cannot be installed")
    return tmp_path / "env"


@pytest.mark.slow
def test_what_was_compiled_in_one_folder_is_not_compiled_in_another(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    log, compiler = tmp_path / "log", tmp_path / "c++"
    compiler.write_text(COMPILER.format(log=log, compiler=shutil.which("g++")))
    compiler.chmod(0o755)
    python = str(environment / "bin/python")
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {"CXX": compiler, "HOME": home, "TMPDIR": home}.items():
        monkeypatch.setenv(name, str(value))

    def compiled() -> int:
        """How many libraries were compiled since the last time."""
        lines = log.read_text().splitlines()
        log.write_text("")
        return sum(" -shared " in f" {line} " for line in lines)

    def run() -> str:
        return subprocess.run([python, str(tmp_path / "app.py")], check=True, capture_output=True, text=True).stdout

    trace, caches = tmp_path / "app.trace", tmp_path / "caches"
    assert main(["record", "-o", str(trace), "--caches", str(caches), "--", python, str(tmp_path / "app.py")]) == 0
    assert compiled() > 0
    cut = ["tailor", "--env", str(environment), "--workload", str(trace), "--no-pack", "--host-pages", "keep"]
    assert main([*cut, "--bake-caches", str(caches)]) == 0
    shutil.rmtree(caches)
    first = run()
    assert compiled() == 0
    assert run() == first and compiled() == 0
