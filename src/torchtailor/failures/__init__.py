"""Reads build logs and names the cause of a failure and its mend."""

from torchtailor.failures.engine import Diagnosis, Finding, diagnose
from torchtailor.failures.failures import AutoMend, Failure, load_failures

__all__ = ["AutoMend", "Diagnosis", "Failure", "Finding", "diagnose", "load_failures"]
