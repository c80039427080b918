"""How old the catalog's facts are."""

from __future__ import annotations

from datetime import date

MAX_AGE_DAYS = 90


def today() -> date:
    return date.today()


def age_note(checked: str) -> str:
    """A sentence for a catalog whose facts were last checked too long ago; empty for any other."""
    try:
        days = (today() - date.fromisoformat(checked)).days
    except ValueError:
        return ""
    if days <= MAX_AGE_DAYS:
        return ""
    return (
        f"The catalog was last checked on {checked}, {days} days ago; `torchtailor catalog update` looks for newer "
        "releases."
    )
