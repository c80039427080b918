"""docs/use.md, tried: what it writes into a project works with uv and pip on an index that `publish` wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop  # noqa: F401
from torchtailor.core.pythons import find_base_python
from torchtailor.core.store import open_store
from torchtailor.publish.publish import publish

PAGE = (Path(__file__).parents[3] / "docs" / "use.md").read_text()
PLACE = "https://wheels.example/cu128-sm90/"
CUT = "2.8.0+cu128.sm90"

pytestmark = pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")


def block(start: str) -> str:
    """The fenced block of the page that begins with this line."""
    found: list[str] = re.findall(r"```[a-z]+\n(.*?)```", PAGE, re.DOTALL)
    return next(text for text in found if text.startswith(start))


@pytest.fixture
def project(workshop: Workshop, tmp_path: Path) -> tuple[Path, str]:  # noqa: F811
    """A project with the page's own pyproject.toml, and the address of the index in it."""
    workshop.build("sm90-avx512")
    publish(workshop.out, open_store(str(tmp_path / "public"), "--to"))
    address = (tmp_path / "public" / "cu128-sm90").as_uri() + "/"
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(block("[project]\n").replace(PLACE, address))
    return folder, address


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_uv_locks_the_cut_wheels_with_their_hashes_and_pip_installs_them(
    project: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = project
    if (python := find_base_python("3.13")) is None:
        pytest.skip("no Python 3.13 is installed, which the page's project is for")
    monkeypatch.setenv("UV_PYTHON", str(python))
    run(folder, "uv", "lock", "--offline")
    lock = (folder / "uv.lock").read_text()
    assert f'version = "{CUT}"' in lock
    assert re.search(r'torch-2\.8\.0(\+|%2B)cu128\.sm90[^"]*whl"(, hash = "sha256:[0-9a-f]{64}")?', lock)
    run(
        folder,
        "uv",
        "export",
        "--offline",
        "--no-emit-project",
        "--format",
        "requirements-txt",
        "-o",
        "requirements.txt",
    )
    text = (folder / "requirements.txt").read_text()
    assert f"torch=={CUT}" in text
    assert "--hash=sha256:" in text
    line = block("pip install --require-hashes").strip().replace(PLACE, address).split()
    target = ["--dry-run", "--ignore-installed", "--no-deps", "--target", "unused", "--python-version", "3.13"]
    platform = ["--only-binary=:all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]
    planned = run(folder, sys.executable, "-m", *line, *target, *platform)
    assert f"torch-{CUT}" in planned


@pytest.mark.slow
def test_pip_prefers_the_cut_wheel(project: tuple[Path, str]) -> None:
    folder, address = project
    line = block("pip install --extra-index-url").strip().replace(PLACE, address).split()
    target = ["--dry-run", "--no-deps", "--target", "unused", "--python-version", "3.13", "--only-binary=:all:"]
    planned = run(folder, sys.executable, "-m", *line, *target, "--platform", "manylinux_2_28_x86_64")
    assert f"torch-{CUT}" in planned
