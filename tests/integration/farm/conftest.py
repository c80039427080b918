from __future__ import annotations

from tests.integration.backends.conftest import shell, site

__all__ = ["shell", "site"]
