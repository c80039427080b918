"""A real torch to verify: named by TORCHTAILOR_TEST_TORCH (a Python or an environment), or this Python's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtailor.trees.artifact.launch import Launch, open_target


@pytest.fixture(scope="session")
def torch_launch() -> Iterator[Launch]:
    with open_target(Path(os.environ.get("TORCHTAILOR_TEST_TORCH") or sys.executable)) as launch:
        if launch.torch_folder() is None:
            pytest.skip("no torch here: set TORCHTAILOR_TEST_TORCH to a Python or environment that has one")
        yield launch
