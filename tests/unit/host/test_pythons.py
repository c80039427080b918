"""Which Python is found when another version is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchtailor.core.pythons import find_python, find_uv


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "shims" / "python3.99", "echo 'pyenv: python3.99: command not found' >&2; exit 127")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python3"))


def test_a_shim_of_pyenv_is_passed_over_for_the_python_behind_it(tmp_path: Path) -> None:
    assert find_python("3.99") is None
    real = executable(tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", "echo 3.99")
    assert find_python("3.99") == real
    assert find_python("3.99t") is None


def test_the_newest_patch_release_of_pyenv_comes_first(tmp_path: Path) -> None:
    for version in ("3.99.9", "3.99.10", "3.99.2"):
        executable(tmp_path / "pyenv" / "versions" / version / "bin" / "python3.99", "echo 3.99")
    assert find_python("3.99") == tmp_path / "pyenv" / "versions" / "3.99.10" / "bin" / "python3.99"


def test_uv_beside_torchtailor_knows_pythons(tmp_path: Path) -> None:
    assert find_uv() is None
    managed = executable(tmp_path / "managed" / "python3.99", "echo 3.99")
    uv = executable(tmp_path / "own" / "uv", f"echo {managed}")
    assert find_uv() == str(uv)
    assert find_python("3.99") == managed


def test_the_own_python(tmp_path: Path) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert find_python(own) == tmp_path / "own" / "python3"
    assert find_python("2.0") is None
