"""A pasted text as lines, cut to what a machine can say about itself, so that reading takes time in step with it."""

from __future__ import annotations

import re

_MOST_CHARACTERS = 2_000_000  # /proc/cpuinfo of 512 threads is under one million
_MOST_LINES = 60_000
_LONGEST = 4_000  # the flags of a CPU are under 3,000


def text_lines(text: str) -> list[str]:
    """The lines without what encloses them in a report or a web page."""
    plain = re.sub(r"<(/?[a-z_]{1,30})>", _spaced, text[:_MOST_CHARACTERS])
    plain = re.sub(r"\n\s*\n", "\n\n", plain)
    return [line[:_LONGEST].rstrip() for line in plain.splitlines()[:_MOST_LINES]]


def _spaced(tag: re.Match[str]) -> str:
    """`<product_name>` of nvidia-smi's XML stays, as a key; tags of a web page go."""
    name = tag[1]
    if "_" not in name:
        return " "
    return "\n" if name.startswith("/") else f"\n{name}: "


def value_of(line: str) -> str:
    """What stands behind a key: `GPU: NVIDIA T4` -> `NVIDIA T4`."""
    key, colon, value = line.partition(":")
    return value.strip() if colon and len(key) < 40 else line.strip()
