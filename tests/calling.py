"""torchtailor in this process, as a process of its own would run it: most of a command's time is its imports."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from torchtailor.cli import main


def call(*words: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What a command printed, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        code = main([*words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
