"""Libraries with GPU code, and images that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture
def fat() -> bytes:
    """A library made by nvcc: 50 kB, of which half goes when cut for 9.0."""
    return (FIXTURES / "raw.so").read_bytes()
