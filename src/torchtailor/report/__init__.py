"""The report of a verification: one self-contained HTML page, and the same figures as terminal bars."""

from torchtailor.report.page import render, write_report

__all__ = ["render", "write_report"]
