"""The audit's rules; importing this package registers all of them."""

from torchtailor.nix.rules import build, claims, documents, matrix, names, nix, pins
from torchtailor.nix.rules.base import RULES, AuditContext, AuditRule, Severity

__all__ = [
    "RULES",
    "AuditContext",
    "AuditRule",
    "Severity",
    "build",
    "claims",
    "documents",
    "matrix",
    "names",
    "nix",
    "pins",
]
