"""What is expected of recommendations holds for the releases of one day."""

from __future__ import annotations

import pytest

from tests.catalogs import pin


@pytest.fixture(autouse=True)
def pinned_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch)
