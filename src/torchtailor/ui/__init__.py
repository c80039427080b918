"""Everything that is printed goes through here: tables, progress, JSON."""

from torchtailor.format import human_bytes, human_seconds
from torchtailor.ui.bar import ProgressBar
from torchtailor.ui.console import (
    err,
    json_lines,
    out,
    print_event,
    print_json,
    print_text,
    printed_documents,
    progress,
    table,
)

__all__ = [
    "ProgressBar",
    "err",
    "human_bytes",
    "human_seconds",
    "json_lines",
    "out",
    "print_event",
    "print_json",
    "print_text",
    "printed_documents",
    "progress",
    "table",
]
