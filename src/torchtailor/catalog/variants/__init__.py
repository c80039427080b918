"""The matrix of variants: names, expansion, rules, selectors."""

from torchtailor.catalog.variants.matrix import Matrix, ParsedName, Resolution, matrix_of
from torchtailor.catalog.variants.rules import (
    MatrixRule,
    MethodCoverage,
    Reason,
    available_methods,
    coverage,
    why_impossible,
)
from torchtailor.catalog.variants.select import expand_braces, find_variants, select
from torchtailor.catalog.variants.variant import Variant

__all__ = [
    "Matrix",
    "MatrixRule",
    "MethodCoverage",
    "ParsedName",
    "Reason",
    "Resolution",
    "Variant",
    "available_methods",
    "coverage",
    "expand_braces",
    "find_variants",
    "matrix_of",
    "select",
    "why_impossible",
]
