"""Where the files of a published index lie in its store."""

from __future__ import annotations

from urllib.parse import unquote

from torchtailor.core.errors import BadInputError
from torchtailor.core.trust import is_relative_path
from torchtailor.trees.index.pages import IndexedFile

TARGETS = "targets.json"  # the folders of the index
FILES = "files"  # what it offers


def stored_at(file: IndexedFile) -> str:
    """Where a listed file lies in the store; empty for one that is listed by an address elsewhere."""
    if not file.url.startswith("../../"):
        return ""
    place = unquote(file.url.removeprefix("../../"))
    if not (is_relative_path(place) and place.startswith(f"{FILES}/")):
        raise BadInputError(
            f"The place that the index lists for {file.filename} leads out of the index.", "Publish it again."
        )
    return place
