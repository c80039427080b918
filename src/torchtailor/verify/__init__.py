"""Proof of an artifact: static, at import, on the GPU; each check is one line with a reason."""

from torchtailor.verify.result import Check, Level, Outcome, Report

__all__ = ["Check", "Level", "Outcome", "Report"]
