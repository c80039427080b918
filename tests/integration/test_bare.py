"""Both README commands in bare Debian systems (tools/bare_commands.py), and what they say where something lacks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "bare_commands.py"

_SPEC = importlib.util.spec_from_file_location("bare_commands", TOOL)
assert _SPEC and _SPEC.loader
bare = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = bare  # dataclasses look their module up
_SPEC.loader.exec_module(bare)

pytestmark = pytest.mark.xdist_group("bare")
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root, debootstrap")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *options], capture_output=True, text=True, check=False)


def test_the_smoke_selection_is_there() -> None:
    for name in bare.SMOKE:
        assert (ROOT / name).is_file() or list((ROOT / name).glob("test_*.py")), name


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("debootstrap") is not None, reason="it would run")
def test_without_root_or_debootstrap(tmp_path: Path) -> None:
    done = run("--systems", str(tmp_path / "systems"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: This needs root and debootstrap")
    assert not (tmp_path / "systems").exists()


def test_a_system_is_kept_only_for_the_same_packages(tmp_path: Path) -> None:
    line = [str(ROOT / "tools" / "bare.sh"), str(tmp_path), "trixie", "--with", "make,git", "--dry-run"]
    variables = {**os.environ, "MIRROR": "http://mirror.invalid/debian"}

    def asked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, capture_output=True, text=True, check=False, env=variables)

    assert "--include=python3,make,git trixie" in asked().stdout
    (tmp_path / ".bare").write_text("trixie python3,make,git\n")
    assert (asked().returncode, asked().stdout) == (0, "")
    (tmp_path / ".bare").write_text("trixie python3\n")
    assert asked().returncode == 1
    assert "is another system (trixie python3)" in asked().stderr


@needs_root
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("account", bare.HOMES)
@pytest.mark.parametrize("suite", bare.SUITES)
def test_both_commands(suite: str, account: str) -> None:
    done = run(suite, "--account", account)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


@needs_root
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", [situation.name for situation in bare.SITUATIONS])
def test_something_is_missing(name: str) -> None:
    done = run("--only", name)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
