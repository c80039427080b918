"""Finds and runs the tools of Nix and Flox."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchtailor.core.errors import EnvironmentProblem

# Only evaluate: nothing is built or copied, so no /nix is needed.
EVALUATE = ("--store", "dummy://", "--readonly-mode", "--eval", "--strict", "--json")
_INSTALL = "Install Nix; on Debian and Ubuntu: `apt-get install nix-bin`."


@dataclass(frozen=True, slots=True)
class NixRun:
    """A finished run of Nix."""

    code: int
    out: str
    err: str


@cache
def find_tool(name: str) -> Path | None:
    """The path of `nix-instantiate`, `nix-build`, `nix` or `flox`; None if it is not installed."""
    found = shutil.which(name)
    return Path(found) if found else None


def has_nix() -> bool:
    return find_tool("nix-instantiate") is not None


def need_tool(name: str) -> Path:
    found = find_tool(name)
    if found is None:
        raise EnvironmentProblem(f"{name} is not installed.", _INSTALL)
    return found


def run_nix(
    tool: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    folder: Path | None = None,
) -> NixRun:
    """Run a tool of Nix, in a folder or in this one, and wait for it."""
    command = [str(need_tool(tool)), *arguments]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"{tool} timed out after {timeout:.0f} s.", "Try again when the machine is less busy."
        ) from error
    except OSError as error:
        raise EnvironmentProblem(f"{tool} could not be started: {error.strerror}.", _INSTALL) from error
    return NixRun(done.returncode, done.stdout, done.stderr)
