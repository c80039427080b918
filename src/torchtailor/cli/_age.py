"""Ages: how they are written on the command line, and the line on stderr for a catalog whose facts are old."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchtailor.core.errors import UsageError

if TYPE_CHECKING:
    from torchtailor.catalog import Catalog


def say_if_old(catalog: Catalog) -> None:
    """Say so where the catalog was last checked too long ago."""
    from torchtailor.catalog.age import age_note
    from torchtailor.cli.ui import err

    if note := age_note(catalog.checked):
        err().print(f"Note: {note}", style="yellow", markup=False)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds_of(text: str, option: str) -> float:
    """The seconds of a time such as 12h."""
    match = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip().lower())
    if not match:
        raise UsageError(f"{text!r} is not a time such as 12h, 30d or 8w.", f"Write {option} 30d.")
    return int(match[1]) * _UNITS[match[2]]
