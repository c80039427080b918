"""Everything that is printed goes through here: tables, progress, JSON."""

from torchtailor.cli.ui.bar import ProgressBar
from torchtailor.cli.ui.console import (
    apart,
    err,
    hanging,
    json_lines,
    out,
    print_event,
    print_json,
    print_text,
    printed_documents,
    progress,
    table,
    working,
)
from torchtailor.core.format import human_bytes, human_seconds

__all__ = [
    "ProgressBar",
    "apart",
    "err",
    "hanging",
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
    "working",
]
