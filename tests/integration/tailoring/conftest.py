"""Real wheels from the configured index, and environments to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

from tests.calling import call

ROOT = Path(__file__).parents[3]


def run(*words: object, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is in the failure, if there is one."""
    environment = _outside_of_environments() | extra
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, env=environment)
    if check:
        assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
    return done


def _outside_of_environments() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")}


def torchtailor(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = call(*words, environment=_outside_of_environments())
    assert not check or done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def nvjpeg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real package of NVIDIA's, for this machine."""
    folder = tmp_path_factory.mktemp("stock")
    done = run(
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder,
        "nvidia-nvjpeg-cu12==12.4.0.76", check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the index cannot be used: {done.stderr.strip().splitlines()[-1:]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest) -> str:
    if request.param == "uv" and not shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
        pytest.skip("uv is not installed")
    return str(request.param)


class Venv:
    """A fresh environment with one of the installers, which acts on it from outside."""

    def __init__(self, folder: Path, installer: str, *, with_pip: bool = False) -> None:
        self.folder = folder
        self.installer = installer
        self._cache = folder.parent / "uv-cache"
        run(sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), folder)

    @classmethod
    def uv(cls, other: Venv) -> Venv:
        """The same environment, with uv acting on it."""
        venv = copy(other)
        venv.installer = "uv"
        return venv

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (site,) = self.folder.glob("lib/python3*/site-packages")
        return site

    def pip(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """pip's or uv's own `install`, `check`, `uninstall`, `list`."""
        if self.installer == "pip":
            return run(sys.executable, "-m", "pip", "--python", self.python, *words, check=check)
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        rest = [word for word in words if word != "-y"]
        return run(uv, "pip", *rest, "--python", self.python, check=check, UV_CACHE_DIR=str(self._cache))


@pytest.fixture
def venv(tmp_path: Path, installer: str) -> Venv:
    return Venv(tmp_path / "venv", installer)
