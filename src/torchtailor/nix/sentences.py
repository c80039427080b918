"""Sentences of comments and descriptions, which may go over several lines, and whether they speak of another recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtailor.nix.syntax import TextLine

_BREAK = re.compile(r"(?<=[.!?])\s+(?=[A-Z\W])|\s*;\s+")
_NEW = re.compile(r"^\s*(?:[-*•]|\d+[.)]|[A-Z][\w -]{1,24}:)\s|^\s*$")
# "For RTX 5090, use sm120 builds instead", "unlike SM100", "NOT for INT8 inference (use avx512vnni)"
_ELSEWHERE = re.compile(
    r"\binstead\b|\brather than\b|\bother than\b|\bunlike\b|\bcompared (?:to|with)\b|\bdiffers? from\b"
    r"|\b(?:use|consider|choose|see|prefer|build)\b[^.]{0,60}\b(?:builds?|variants?|recipes?|packages?)\b"
    r"|\bfor\b[^.]{1,60}[,:(] ?(?:please )?(?:use|consider|see|choose)\b|\(use \S+\)",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"\bnot\b|\bno\b|\bwithout\b|n't\b|\bexcept\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and the lines that it stands on."""

    text: str
    lines: tuple[TextLine, ...]

    @property
    def about_another(self) -> bool:
        """Whether it sends the reader to another recipe."""
        return bool(_ELSEWHERE.search(self.text))

    @property
    def negated(self) -> bool:
        return bool(_NEGATED.search(self.text))


def sentences(lines: Sequence[TextLine]) -> Iterator[Sentence]:
    """The sentences of consecutive lines; a bullet, a `Label:` or a blank line begins a new one."""
    text = ""
    parts: list[TextLine] = []
    for at, line in enumerate(lines):
        last = lines[at - 1].number if at else line.number
        if parts and (line.number > last + 1 or _NEW.match(line.text)):
            yield Sentence(text, tuple(parts))
            text, parts = "", []
        rest = line.text.strip()
        while found := _BREAK.search(rest):
            piece, rest = rest[: found.start()], rest[found.end() :]
            yield Sentence(f"{text} {piece}".strip(), (*parts, TextLine(line.number, piece)))
            text, parts = "", []
        if rest:
            text = f"{text} {rest}".strip()
            parts.append(TextLine(line.number, rest))
        if parts and rest.endswith((".", "!", "?")):
            yield Sentence(text, tuple(parts))
            text, parts = "", []
    if parts:
        yield Sentence(text, tuple(parts))
