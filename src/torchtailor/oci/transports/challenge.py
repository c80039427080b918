"""What a registry asks for when it wants a login: the `WWW-Authenticate` header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NEXT = re.compile(rf'[\s,]*(?:({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))|({_TOKEN})(?:\s+|,|$))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to log in, and what it needs."""

    scheme: str  # in lower case
    values: Mapping[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """All ways that a header offers, in its order; what cannot be read is left out."""
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while match := _NEXT.match(header, position):
        if match.end() == position:
            break
        position = match.end()
        name, quoted, plain, scheme = match.groups()
        if scheme:
            found.append((scheme.lower(), {}))
        elif found:
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            found[-1][1].setdefault(name.lower(), value)
    return tuple(Challenge(scheme, values) for scheme, values in found)
