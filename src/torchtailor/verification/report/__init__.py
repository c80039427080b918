"""The report of a verification and that of traces, each one self-contained HTML page; and bars for terminals."""

from torchtailor.verification.report.page import render, write_report

__all__ = ["render", "write_report"]
