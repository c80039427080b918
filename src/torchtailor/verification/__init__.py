"""Proof of an artifact: static, at import, on the GPU; each check is one line with a reason."""

from torchtailor.verification.result import Check, CheckOutcome, Level, VerifyReport
from torchtailor.verification.run import verify

__all__ = ["Check", "CheckOutcome", "Level", "VerifyReport", "verify"]
