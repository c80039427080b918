"""Installs a wheelhouse into an environment with uv or pip, and sees that it imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchtailor.build.choose import running_python
from torchtailor.build.wheelhouse import SIMPLE, Wheelhouse
from torchtailor.errors import CheckFailedError, EnvironmentProblem, UsageError

# What pip and uv must not add from the user's own settings: everything comes from the wheelhouse.
_FOREIGN = ("PIP_", "UV_")
_TAIL = 12

_CHECK = """
import json, platform
import torch
x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
assert torch.equal(x @ x.T, torch.tensor([[5.0, 14.0], [14.0, 50.0]]))
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
                  "gpus": torch.cuda.device_count(), "path": torch.__file__}))
"""


_VERSION = """
import platform, sys, sysconfig
threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(f"{sys.version_info[0]}.{sys.version_info[1]}{threaded}", platform.machine())
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A torch that was installed and imported."""

    environment: Path
    installer: str
    version: str
    cuda: str | None
    python: str
    gpus: int


def find_environment(into: Path | None) -> Path:
    """The environment that is meant: the one named, else the active one."""
    if into is not None:
        return into.absolute()
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active:
        return Path(active)
    raise UsageError(
        "Install into which environment? None is active.", "Add --into .venv; it is made if it does not exist."
    )


def make_environment(path: Path, python: str) -> None:
    """A new virtual environment with this Python, unless there is one already."""
    if _python_of(path).exists():
        return
    if path.exists() and any(path.iterdir()):
        raise UsageError(f"{path} is neither empty nor a Python environment.", "Name another folder with --into.")
    uv = shutil.which("uv")
    if found := find_python(python):
        _run([found, "-m", "venv", *(["--without-pip"] if uv else []), str(path)], "make the environment")
    elif uv:
        _run([uv, "venv", "--python", python, str(path)], "make the environment")
    else:
        raise EnvironmentProblem(
            f"There is no Python {python} on this machine.", f"Install it or uv, or choose --python {running_python()}."
        )


def find_python(version: str) -> str | None:
    """A Python of this version that really runs: what is on the PATH may be a shim for one that is switched off."""
    if version == running_python():
        return sys.executable
    for folder in os.get_exec_path():
        path = Path(folder) / f"python{version}"
        if path.is_file():
            done = subprocess.run([path, "-I", "-c", _VERSION], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.split()[:1] == [version]:
                return str(path)
    return None


def install(house: Wheelhouse, environment: Path) -> Installed:
    """Install with uv where it is there, else with the environment's pip; then import torch and calculate."""
    python = _python_of(environment)
    _check_python(house, python)
    uv = shutil.which("uv")
    index = (house.path / SIMPLE).resolve().as_uri()
    if uv:
        tool = "uv"
        line = [uv, "pip", "install", "--python", str(python), "--default-index", index]
    else:
        tool = "pip"
        line = [*_pip(environment), "install", "--disable-pip-version-check", "--index-url", index]
    _run([*line, *house.requirements], f"install with {tool}")
    answer = import_torch(environment)
    return Installed(environment, tool, answer.version, answer.cuda, answer.python, answer.gpus)


class _Answer(msgspec.Struct):
    version: str
    cuda: str | None
    python: str
    gpus: int


def import_torch(environment: Path) -> _Answer:
    """Import torch in an environment and multiply two matrices."""
    python = _python_of(environment)
    done = subprocess.run(
        [str(python), "-I", "-c", _CHECK], capture_output=True, text=True, check=False, cwd=environment
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailedError(
            f"torch was installed into {environment} but does not import: {last}",
            f"`{python} -c 'import torch'` shows all of it.",
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Answer)


def _pip(environment: Path) -> list[str]:
    """The environment's own pip, or this Python's, told to work for it."""
    own = str(_python_of(environment))
    probe = subprocess.run([own, "-I", "-c", "import pip"], capture_output=True, check=False)
    return [own, "-m", "pip"] if probe.returncode == 0 else [sys.executable, "-m", "pip", "--python", own]


def _python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def _check_python(house: Wheelhouse, python: Path) -> None:
    """The wheels are for one Python and one kind of machine; say so before an installer does."""
    if not python.exists():
        raise EnvironmentProblem(f"{python.parent.parent} has no bin/python.", "Name a Python environment with --into.")
    done = _run([str(python), "-I", "-c", _VERSION], "ask the environment for its Python")
    version, machine = done.split()
    target = house.target
    if (version, machine) != (target.python, target.arch):
        raise UsageError(
            f"{house.variant} is for Python {target.python} on {target.arch}, and the environment has Python {version} "
            f"on {machine}.",
            "Name another environment with --into, or build for this Python with --python.",
        )


def _run(line: Sequence[str], what: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment["UV_NO_CONFIG"] = "1"
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise EnvironmentProblem(f"Could not {what}: {line[0]} does not start ({error.strerror}).") from error
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_TAIL:])
        raise EnvironmentProblem(f"Could not {what}:\n{tail}", f"The command was: {' '.join(line)}")
    return done.stdout
