"""Why torch does not run on a machine, and what fixes it."""

from torchtailor.doctor.examine import DoctorReport, Problem
from torchtailor.doctor.fixes import Fix
from torchtailor.doctor.run import doctor
from torchtailor.doctor.symptoms import ProblemKind

__all__ = ["DoctorReport", "Fix", "Problem", "ProblemKind", "doctor"]
