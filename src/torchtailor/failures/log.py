"""Log lines, streamed: whatever tool wrote them, as that tool's compiler would have printed them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# What tools put before a line of the program they run: docker's step and seconds, nix's and flox's package, CI's clock.
_PREFIX = re.compile(
    r"^(?:#\d+ (?:\d+\.\d+ )?|\[?[\w.+-]+\]?> |\d{4}-\d\d-\d\d[T ][\d:.]+Z? |\s*│\s?|\s+> )",
)
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_MAKE = re.compile(r"^\[\s*(\d+)%\]")
_BLOCK = 1 << 16
_MAX_LINE = 20_000  # command lines of a link run to megabytes; what matters stands at the front


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log, cleaned."""

    number: int
    text: str


def clean(raw: bytes) -> str:
    """A line without colour codes, redrawn progress and the prefix of the tool around it."""
    text = raw[:_MAX_LINE].decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text:
        text = text.rsplit("\r", 1)[1]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _PREFIX.sub("", text, count=1)


def blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream in pieces of whole lines, so that a piece without anything telling is passed over at once."""
    while piece := stream.read(_BLOCK):
        yield piece + stream.readline(_MAX_LINE)


def percent(line: str) -> float | None:
    """How far the build was, where ninja or make say so in this line."""
    if match := _NINJA.match(line):
        done, total = int(match[1]), int(match[2])
        return 100 * done / total if total else None
    match = _MAKE.match(line)
    return float(match[1]) if match else None
