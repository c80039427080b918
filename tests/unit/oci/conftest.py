"""Libraries with GPU code, and images that hold them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry
from tests.unit.surgery.libraries import Recipe, library

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture
def fat() -> bytes:
    """A library made by nvcc: 50 kB, of which half goes when cut for 9.0."""
    return (FIXTURES / "raw.so").read_bytes()


@pytest.fixture
def wide() -> bytes:
    """A library in which every architecture has many pages, so that it can be cut twice."""
    code = random.Random(1)
    entries = tuple(Entry(code.randbytes(50_000), sm=sm) for sm in (75, 80, 90, 100))
    return library(Recipe(wrapped=[entries], symtab=False, phdr_slack=bytes(600)))
