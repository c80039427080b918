"""A small real library with code for eight architectures, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture
def fat() -> bytes:
    """A library made by nvcc: 50 kB, of which half goes when cut for 9.0."""
    return (FIXTURES / "raw.so").read_bytes()


@pytest.fixture
def zstd() -> bytes:
    """The same library with packed code: so small already that a cut frees no page of it."""
    return (FIXTURES / "size.so").read_bytes()
