"""Installs a wheelhouse into an environment with uv or pip, and sees that it imports."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchtailor.errors import CheckFailedError, EnvironmentProblem, UsageError
from torchtailor.fetch.target import Target
from torchtailor.host.pythons import WHAT_IT_IS, find_python, find_uv, running_python
from torchtailor.wheelhouse.wheelhouse import SIMPLE, Wheelhouse

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


def check_environment(path: Path, target: Target) -> None:
    """Say before anything is built that the environment cannot be used or made."""
    if _python_of(path).exists():
        _check_python(path, target)
    elif path.exists() and any(path.iterdir()):
        raise UsageError(f"{path} is neither empty nor a Python environment.", "Name another folder with --into.")
    elif target.arch != platform.machine():
        raise UsageError(
            f"These wheels are for {target.arch}, and this machine is {platform.machine()}.",
            "Use `torchtailor build`, and install them there with the line that it prints.",
        )
    elif not find_python(target.python) and not find_uv():
        raise EnvironmentProblem(
            f"There is no Python {target.python} on this machine.",
            f"Install it or uv, or choose --python {running_python()}.",
        )


def make_environment(path: Path, target: Target) -> None:
    """A new virtual environment with the Python that is wanted, unless there is one already."""
    check_environment(path, target)
    if _python_of(path).exists():
        return
    uv = find_uv()
    if found := find_python(target.python):
        _run([str(found), "-m", "venv", *(["--without-pip"] if uv else []), str(path)], "make the environment")
    elif uv:
        _run([uv, "venv", "--python", target.python, str(path)], "make the environment")


def install(house: Wheelhouse, environment: Path) -> Installed:
    """Install with uv where it is there, else with the environment's pip; then import torch and calculate."""
    python = _python_of(environment)
    _check_python(environment, house.target)
    uv = find_uv()
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


def _check_python(environment: Path, target: Target) -> None:
    """The wheels are for one Python and one kind of machine; say so before an installer does."""
    python = _python_of(environment)
    if not python.exists():
        raise EnvironmentProblem(f"{environment} has no bin/python.", "Name a Python environment with --into.")
    done = _run([str(python), "-I", "-c", WHAT_IT_IS], "ask the environment for its Python")
    version, machine = done.split()
    if (version, machine) != (target.python, target.arch):
        raise UsageError(
            f"These wheels are for Python {target.python} on {target.arch}, and {environment} has Python {version} "
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
