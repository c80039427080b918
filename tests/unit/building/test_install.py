"""What `install` says of environments that cannot be used, and of a torch that does not start in one."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from torchtailor.core.errors import CheckFailedError, UsageError
from torchtailor.fetch.target import Target
from torchtailor.wheelhouse.install import check_environment, import_torch


def test_a_file_is_no_environment(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(UsageError, match="neither empty nor a Python environment"):
        check_environment(place, Target("3.13", platform.machine()))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -ILL $$", "does not import: it was ended by SIGILL"),
        ("echo ImportError: libcudart >&2; exit 1", "does not import: ImportError: libcudart"),
    ],
)
def test_how_an_import_ended_is_said(script: str, said: str, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(CheckFailedError, match=said):
        import_torch(tmp_path)
