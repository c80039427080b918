"""Known failures of builds, of Nix and of running torch: found in logs and messages, with cause and fix."""

from torchtailor.verification.failures.diagnosis import Diagnosis, FoundFailure, diagnose, find_failures
from torchtailor.verification.failures.known import AutoFix, FailureTable, KnownFailure, load_failures, load_table

__all__ = [
    "AutoFix",
    "Diagnosis",
    "FailureTable",
    "FoundFailure",
    "KnownFailure",
    "diagnose",
    "find_failures",
    "load_failures",
    "load_table",
]
