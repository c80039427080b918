"""What `install` says of environments that cannot be used, and of a torch that does not start in one."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from torchtailor.errors import UsageError
from torchtailor.fetch.target import Target
from torchtailor.wheelhouse.install import check_environment


def test_a_file_is_no_environment(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(UsageError, match="neither empty nor a Python environment"):
        check_environment(place, Target("3.13", platform.machine()))
