"""torchtailor in this process, as a process of its own would run it: most of a command's time is its imports."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from torchtailor.cli import main


def call(
    *words: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """What a command printed, and its exit code; in this folder and with this environment, if none is given."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        if environment is not None:
            for name in os.environ.keys() - environment.keys():
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess([*map(str, words)], code, out.getvalue(), err.getvalue())
