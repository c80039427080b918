"""The head of a generated file: who wrote it, and a hash by which a change by hand is noticed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

_MARK = re.compile(r"^(?:# |<!-- )torchtailor-content: sha256:([0-9a-f]{64})(?: -->)?$", re.MULTILINE)


class Origin(Enum):
    """Who wrote a file."""

    GENERATED = "generated"  # by us, and nobody has touched it since
    EDITED = "edited"  # by us, then changed by hand
    FOREIGN = "foreign"  # not by us


@dataclass(frozen=True, slots=True)
class Style:
    """How a kind of file writes a comment."""

    before: str
    after: str = ""

    def line(self, text: str) -> str:
        return f"{self.before}{text}{self.after}\n"


HASHES = Style("# ")
MARKDOWN = Style("<!-- ", " -->")


def stamp(body: str, title: str, style: Style = HASHES) -> str:
    """The file: its head, the hash of all the rest, and the body."""
    head = style.line(title) + style.line("Written by torchtailor: change the catalog and write again, not this file.")
    return head + style.line(f"torchtailor-content: sha256:{_digest(head + body)}") + body


def origin(text: str) -> Origin:
    """Who wrote this text."""
    mark = _MARK.search(text)
    if mark is None:
        return Origin.FOREIGN
    rest = text[: mark.start()] + text[mark.end() + 1 :]
    return Origin.GENERATED if _digest(rest) == mark[1] else Origin.EDITED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
