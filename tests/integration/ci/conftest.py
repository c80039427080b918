"""Workflows as they are once torchtailor is published, and the program that their scripts run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ci.conftest import published
from tests.warm import warm_torchtailor

__all__ = ["published"]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_torchtailor(tmp_path_factory.mktemp("warm") / "bin") as folder:
        yield folder
