"""Shell inside recipes and beside them: commands without their comments, and the variables they export."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from torchtailor.recipes.syntax import Line

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_QUOTES = re.compile(r"[\"'\\]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One line of shell as words; comments are gone, here-documents are told apart."""

    line: int
    words: tuple[str, ...]
    document: bool = False

    @property
    def text(self) -> str:
        return " ".join(self.words)


def commands(lines: Iterable[Line]) -> Iterator[Command]:
    """The commands of a script; the lines of a here-document come as they are, marked as such."""
    end = ""
    for line in lines:
        if end:
            if line.text.strip() == end:
                end = ""
            else:
                yield Command(line.number, (line.text.strip(),), document=True)
            continue
        words = split(line.text)
        if words:
            yield Command(line.number, words)
        if found := _HEREDOC.search(" ".join(words)):
            end = found[2]


@lru_cache(maxsize=8192)  # the recipes of a tree are much alike
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


def exports(script: Iterable[Command]) -> dict[str, tuple[str, int]]:
    """Variables that are exported, with their last value and line."""
    found: dict[str, tuple[str, int]] = {}
    for command in script:
        if command.document or command.words[0] != "export":
            continue
        for word in command.words[1:]:
            if match := _ASSIGNMENT.fullmatch(word):
                found[match[1]] = (match[2], command.line)
    return found
