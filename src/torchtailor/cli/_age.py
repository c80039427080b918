"""The line on stderr for a catalog whose facts are old."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtailor.catalog import Catalog


def say_if_old(catalog: Catalog) -> None:
    """Say so where the catalog was last checked too long ago."""
    from torchtailor.catalog.age import age_note
    from torchtailor.ui import err

    if note := age_note(catalog.checked):
        err().print(f"Note: {note}", style="yellow", markup=False)
