from __future__ import annotations

from tests.unit.backends.conftest import catalog, hurry, site, workshop

__all__ = ["catalog", "hurry", "site", "workshop"]
