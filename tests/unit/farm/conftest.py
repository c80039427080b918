from __future__ import annotations

from tests.unit.building.conftest import catalog, hurry, site, workshop

__all__ = ["catalog", "hurry", "site", "workshop"]
