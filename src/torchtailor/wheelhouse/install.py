"""Installs a wheelhouse into an environment with uv or pip, and tests the import."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchtailor.core.disk import can_keep_caches
from torchtailor.core.errors import CheckFailedError, EnvironmentProblem, UsageError
from torchtailor.core.pythons import WHAT_IT_IS, find_python, find_uv, running_python
from torchtailor.core.shapes import shaped
from torchtailor.core.urls import redact
from torchtailor.fetch.target import Target
from torchtailor.wheelhouse.wheelhouse import SIMPLE, Wheelhouse

_log = logging.getLogger(__name__)
# The user's settings of pip and uv are ignored: everything comes from the wheelhouse.
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
class TorchInstallation:
    """A torch that was installed, imported and tested with a matmul."""

    environment: Path
    installer: str
    version: str
    cuda: str | None
    python: str
    gpus: int


def find_environment(into: Path | None) -> Path:
    """The environment to install into: the one given, else the active one."""
    if into is not None:
        return into.absolute()
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active:
        return Path(active)
    raise UsageError(
        "Install into which environment? None is active.", "Add --into .venv; it is created if it does not exist."
    )


def check_free(path: Path) -> None:
    """Raise where an environment can neither be nor be created."""
    if path.exists() and not _python_of(path).exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is neither empty nor a Python environment.", "Give another folder with --into.")


def check_environment(path: Path, target: Target) -> None:
    """Raise before anything is built where the environment cannot be used or created."""
    check_free(path)
    if _python_of(path).exists():
        _check_python(path, target)
    elif target.arch != platform.machine():
        raise UsageError(
            f"These wheels are for {target.arch}, and this machine is {platform.machine()}.",
            "Use `torchtailor build`, and install them on such a machine with the command that it prints.",
        )
    elif not find_python(target.python) and not find_uv():
        raise EnvironmentProblem(
            f"Python {target.python} is not installed.",
            f"Install it or uv, or choose --python {running_python()}.",
        )


def make_environment(path: Path, target: Target) -> None:
    """Create a virtual environment with the target's Python, unless there is one already."""
    check_environment(path, target)
    if _python_of(path).exists():
        return
    uv = find_uv()
    if found := find_python(target.python):
        _run([str(found), "-m", "venv", *(["--without-pip"] if uv else []), str(path)], "make the environment")
    elif uv:
        _run([uv, "venv", "--python", target.python, str(path)], "make the environment")


def install_wheelhouse(wheelhouse: Wheelhouse, environment: Path) -> TorchInstallation:
    """Install with uv where it is installed, else with the environment's pip; then import torch and run a matmul."""
    python = _python_of(environment)
    _check_python(environment, wheelhouse.target)
    uv = find_uv()
    index = (wheelhouse.path / SIMPLE).resolve().as_uri()
    if uv:
        tool = "uv"
        line = [uv, "pip", "install", "--python", str(python), "--default-index", index, "--reinstall"]
    else:
        tool = "pip"
        line = [*_pip(environment), "install", "--disable-pip-version-check", "--index-url", index]
        line.append("--force-reinstall")
    # Reinstalled, because `nvidia-nccl-cu12==2.27.3` is satisfied by the stock wheel and by one for another GPU.
    _run([*line, *wheelhouse.requirements], f"install with {tool}")
    torch = import_torch(environment)
    return TorchInstallation(environment, tool, torch.version, torch.cuda, torch.python, torch.gpus)


class _ImportedTorch(msgspec.Struct):
    version: str
    cuda: str | None
    python: str
    gpus: int


def import_torch(environment: Path) -> _ImportedTorch:
    """Import torch in an environment and run a matmul."""
    python = _python_of(environment)
    done = subprocess.run(
        [str(python), "-I", "-c", _CHECK], capture_output=True, text=True, check=False, cwd=environment
    )
    if done.returncode != 0:
        if done.returncode < 0:
            last = f"it was ended by {signal.Signals(-done.returncode).name}"
        else:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailedError(
            f"torch was installed into {environment} but does not import: {last}",
            f"Run `{python} -X faulthandler -c 'import torch'` for the traceback.",
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=shaped(_ImportedTorch))


def _pip(environment: Path) -> list[str]:
    """The environment's own pip, or that of this Python with --python."""
    own = str(_python_of(environment))
    probe = subprocess.run([own, "-I", "-c", "import pip"], capture_output=True, check=False)
    return [own, "-m", "pip"] if probe.returncode == 0 else [sys.executable, "-m", "pip", "--python", own]


def _python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def _check_python(environment: Path, target: Target) -> None:
    """Raise where the environment's Python or machine is not that of the wheels."""
    python = _python_of(environment)
    if not python.exists():
        raise EnvironmentProblem(f"{environment} has no bin/python.", "Give a Python environment with --into.")
    done = _run([str(python), "-I", "-c", WHAT_IT_IS], "run the Python of the environment")
    version, machine = done.split()
    if (version, machine) != (target.python, target.arch):
        raise UsageError(
            f"These wheels are for Python {target.python} on {target.arch}, and {environment} has Python {version} "
            f"on {machine}.",
            "Give another environment with --into, or build for this Python with --python.",
        )


def _run(line: Sequence[str], what: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment["UV_NO_CONFIG"] = "1"
    if "UV_CACHE_DIR" not in environment and not can_keep_caches():
        environment["UV_NO_CACHE"] = "1"
    _log.info("running %s", redact(shlex.join(line)))
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise EnvironmentProblem(f"Could not {what}: {line[0]} cannot be started ({error.strerror}).") from error
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_TAIL:])
        raise EnvironmentProblem(f"Could not {what}:\n{tail}", f"The command was: {shlex.join(line)}")
    return done.stdout
