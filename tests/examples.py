"""How much is tried at random: a part of it in `make test`, all of it in `make test-slow`."""

from __future__ import annotations

import os

_LONG = "TORCHTAILOR_TEST_LONG" in os.environ


def examples(many: int) -> int:
    """As many examples of a property, or a quarter of them."""
    return many if _LONG else many // 4
