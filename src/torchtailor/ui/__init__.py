"""Everything that is printed goes through here: tables, progress, JSON."""

from torchtailor.ui.bar import ProgressBar
from torchtailor.ui.console import err, out, print_json, progress, table
from torchtailor.ui.format import human_bytes, human_seconds

__all__ = ["ProgressBar", "err", "human_bytes", "human_seconds", "out", "print_json", "progress", "table"]
