"""Workflows as they are once torchtailor is published; tests/unit/core/test_origin.py has those of before."""

from __future__ import annotations

import pytest

from torchtailor.core import version


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PUBLISHED", True)
