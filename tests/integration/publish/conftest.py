from __future__ import annotations

from tests.integration.building.conftest import shell, site

__all__ = ["shell", "site"]
