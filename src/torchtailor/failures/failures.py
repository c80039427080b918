"""The catalogue of known failures: data, validated when loaded."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True)
class AutoMend:
    """A mend that is safe to try without asking."""

    jobs: float | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: str
    patterns: tuple[str, ...]
    cause: str
    mend: str
    source: str
    rank: int = 1
    auto: AutoMend | None = None


@dataclass(frozen=True)
class Failure:
    """One known failure."""

    id: str
    patterns: tuple[re.Pattern[str], ...]
    cause: str
    mend: str
    source: str
    rank: int
    auto: AutoMend | None

    def match(self, line: str) -> re.Match[str] | None:
        return next((found for pattern in self.patterns if (found := pattern.search(line))), None)

    def explain(self, match: re.Match[str]) -> tuple[str, str]:
        """Cause and mend with the match's own names in them; `symbol2` fills {symbol}."""
        names = {re.sub(r"\d$", "", key): value.strip() for key, value in match.groupdict().items() if value}
        filled = _Filled(names)
        return self.cause.format_map(filled), self.mend.format_map(filled)


class _Filled(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"the {key} named there"


@cache
def load_failures() -> tuple[Failure, ...]:
    """All known failures, in the file's order."""
    text = files("torchtailor.failures").joinpath("data", "failures.toml").read_text("utf-8")
    rows = msgspec.convert(tomllib.loads(text)["failure"], tuple[_Row, ...])
    return tuple(
        Failure(row.id, tuple(map(re.compile, row.patterns)), row.cause, row.mend, row.source, row.rank, row.auto)
        for row in rows
    )
