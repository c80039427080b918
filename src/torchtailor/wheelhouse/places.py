"""What a build may replace in -o: a wheelhouse or an index that an earlier one made, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from torchtailor.tailoring.places import manifest_entry, refusal
from torchtailor.wheelhouse.wheelhouse import MANIFEST_NAME, SIMPLE, WHEELS


def check_place(place: Path) -> None:
    """Refuse to replace what no build made; an empty folder is as good as none."""
    if not os.path.lexists(place) or _is_wheelhouse(place):
        return
    try:
        inside = {path.name for path in place.iterdir()}
    except OSError:  # a file, or a folder that we may not look into
        raise refusal(place) from None
    is_index = inside == {SIMPLE, WHEELS} and (place / SIMPLE / "index.json").is_file()  # of wheel variants
    if inside and not is_index:
        raise refusal(place)


def _is_wheelhouse(place: Path) -> bool:
    return manifest_entry(place / MANIFEST_NAME, "tool", "name") == "torchtailor"
