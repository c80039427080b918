"""Pythons and uv on this machine: on the PATH, of pyenv, of uv; only what really starts counts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Asks a Python what it is: `3.13t x86_64`.
WHAT_IT_IS = """
import platform, sys, sysconfig
threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(f"{sys.version_info[0]}.{sys.version_info[1]}{threaded}", platform.machine())
"""


def running_python() -> str:
    """`3.11`, `3.13t`: what torchtailor itself runs on."""
    threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{sys.version_info[0]}.{sys.version_info[1]}{threaded}"


def find_python(version: str) -> Path | None:
    """A Python such as 3.13 or 3.13t: the one that runs torchtailor, else the first found that says it is one."""
    if version == running_python():
        return Path(sys.executable)
    return next((path for path in _candidates(version) if _says(path, version)), None)


def find_base_python(version: str) -> Path | None:
    """The same, but not that of an environment where torchtailor runs in one: it may go away."""
    base = Path(sys.base_prefix) / "bin" / f"python{version}"
    return base if version == running_python() and base.exists() else find_python(version)


def find_uv() -> str | None:
    """uv on the PATH, else the one that is installed beside torchtailor."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.get_exec_path():
        path = Path(folder, f"python{version}")
        if path.is_file():
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/*/bin/python{version}"), key=_numbers, reverse=True)
    if uv := find_uv():
        line = [uv, "python", "find", "--no-project", "--no-python-downloads", version]
        found = subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
        if found:
            yield Path(found)


def _numbers(path: Path) -> list[int]:
    """Sorts pyenv's 3.13.9 before its 3.13.10."""
    return [int(part) for part in re.findall(r"\d+", path.parents[1].name)]


def python_of_environment(environment: Path) -> str | None:
    """`3.11`: the Python of a virtual or conda environment; None where there is none, or it does not start."""
    return version_of(environment / "bin" / "python")


def _says(path: Path, version: str) -> bool:
    """What is on the PATH may be pyenv's shim for a Python that is switched off."""
    return version_of(path) == version


def version_of(path: Path) -> str | None:
    """`3.11`: what a Python says that it is; None where it does not start."""
    try:
        done = subprocess.run([path, "-I", "-c", WHAT_IT_IS], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return words[0] if done.returncode == 0 and words else None
