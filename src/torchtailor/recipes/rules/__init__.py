"""The audit's rules; importing this package registers all of them."""

from torchtailor.recipes.rules import build, claims, documents, matrix, names, nix, pins
from torchtailor.recipes.rules.base import RULES, Context, Rule, Severity

__all__ = [
    "RULES",
    "Context",
    "Rule",
    "Severity",
    "build",
    "claims",
    "documents",
    "matrix",
    "names",
    "nix",
    "pins",
]
