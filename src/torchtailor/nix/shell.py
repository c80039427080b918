"""Shell code in recipes and scripts: commands without comments, and the variables they export."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from torchtailor.nix.syntax import TextLine

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_QUOTES = re.compile(r"[\"'\\]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One line of shell code as words, without its comment; `document` marks lines of here-documents."""

    line: int
    words: tuple[str, ...]
    document: bool = False

    @property
    def text(self) -> str:
        return " ".join(self.words)


def commands(lines: Iterable[TextLine]) -> Iterator[ShellCommand]:
    """The commands of a script; lines of a here-document are not split, and marked as such."""
    end = ""
    for line in lines:
        if end:
            if line.text.strip() == end:
                end = ""
            else:
                yield ShellCommand(line.number, (line.text.strip(),), document=True)
            continue
        words = split(line.text)
        if words:
            yield ShellCommand(line.number, words)
        if found := _HEREDOC.search(" ".join(words)):
            end = found[2]


@lru_cache(maxsize=8192)  # the recipes of a tree share most lines
def split(text: str) -> tuple[str, ...]:
    """The words of a line, quotes kept together, without its comment."""
    words = text.split()
    if _QUOTES.search(text):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
        lexer.whitespace_split = True
        lexer.commenters = ""
        with suppress(ValueError):  # a quote that ends on a later line
            words = list(lexer)
    for at, word in enumerate(words):
        if word.startswith("#"):
            return tuple(words[:at])
    return tuple(words)


def exports(script: Iterable[ShellCommand]) -> dict[str, tuple[str, int]]:
    """Variables that are exported, with their last value and line."""
    found: dict[str, tuple[str, int]] = {}
    for command in script:
        if command.document or command.words[0] != "export":
            continue
        for word in command.words[1:]:
            if match := _ASSIGNMENT.fullmatch(word):
                found[match[1]] = (match[2], command.line)
    return found
