"""The catalog, the tables, and variants by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.catalogs import load_pinned
from torchtailor.building.source.tables import Tables, load_tables
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Matrix, Variant


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_pinned(Path("/"))


@pytest.fixture(scope="session")
def tables() -> Tables:
    return load_tables()


@pytest.fixture(scope="session")
def variant(catalog: Catalog) -> Callable[[str], Variant]:
    matrix = Matrix(catalog)
    return lambda name: matrix.resolve(name).variant
