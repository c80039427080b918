"""The matrix of variants: names, expansion, rules, selectors."""

from torchtailor.variants.matrix import Matrix, ParsedName, Resolution
from torchtailor.variants.rules import Coverage, Reason, Rule, coverage, covering_ways, why_impossible
from torchtailor.variants.select import expand_braces, select
from torchtailor.variants.variant import Variant

__all__ = [
    "Coverage",
    "Matrix",
    "ParsedName",
    "Reason",
    "Resolution",
    "Rule",
    "Variant",
    "coverage",
    "covering_ways",
    "expand_braces",
    "select",
    "why_impossible",
]
