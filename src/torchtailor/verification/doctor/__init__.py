"""Why torch does not run on a machine, and what fixes it."""

from torchtailor.verification.doctor.doctor import doctor
from torchtailor.verification.doctor.examine import DoctorReport, Problem
from torchtailor.verification.doctor.fixes import Fix
from torchtailor.verification.doctor.symptoms import ProblemKind

__all__ = ["DoctorReport", "Fix", "Problem", "ProblemKind", "doctor"]
