from __future__ import annotations

from tests.integration.build.conftest import shell, site

__all__ = ["shell", "site"]
