"""Tests with real tools use the index that the user has configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import link_settings


@pytest.fixture(autouse=True)
def configured_index(home: Path) -> None:
    link_settings()


@pytest.fixture
def shared_cache(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torchtailor's cache, with the wheels that other tests have downloaded."""
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(downloads / "torchtailor"))
    return downloads / "torchtailor"
