"""The matrix of a catalog, made once: it checks every variant when it is made."""

from __future__ import annotations

from torchtailor.catalog.load import Catalog
from torchtailor.variants.matrix import Matrix

_made: list[Matrix] = []


def matrix_of(catalog: Catalog) -> Matrix:
    """The matrix of this very catalog."""
    if not _made or _made[0].catalog is not catalog:
        _made[:] = [Matrix(catalog)]
    return _made[0]
