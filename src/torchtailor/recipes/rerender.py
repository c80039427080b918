"""A generated recipe as the catalog would write it now."""

from __future__ import annotations

from torchtailor.catalog.load import Catalog
from torchtailor.recipes.blueprint import Blas, Blueprint
from torchtailor.recipes.pins import Pins
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.render import render, spark_names, spark_recipes


def rerender(catalog: Catalog, pins: Pins, recipe: Recipe) -> str | None:
    """The recipe's text from the catalog; None when the catalog has no such recipe."""
    name = recipe.recipe_name
    if recipe.variant and name and not name.suffix:
        return render(Blueprint(catalog, pins, recipe.variant, _blas(recipe)))
    return spark_recipes(catalog, pins)[recipe.name] if recipe.name in spark_names(pins) else None


def _blas(recipe: Recipe) -> Blas:
    uses_mkl = any(selection.text.endswith(".mkl") for selection in recipe.source.selections)
    return Blas.MKL if uses_mkl else Blas.OPENBLAS
