"""Who is behind run-time dispatch, by name and by source file; the table is data/dispatch.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchtailor.core.tables import read_table

_NEVER = r"(?!)"
# what compilers and BOLT append to the names of parts and copies of a function
_PART = re.compile(r"(?:\.(?:org|cold|part|constprop|isra|lto_priv|warm|localalias)(?:\.\d+)?)+$")


@dataclass(frozen=True, slots=True)
class Family:
    """Code of one project that is reached only after the CPU was asked."""

    name: str
    names: re.Pattern[str]
    sources: re.Pattern[str]
    contiguous: bool = False

    def has(self, name: str, source: str) -> bool:
        return bool((name and self.names.search(name)) or (source and self.sources.search(source)))


@dataclass(frozen=True, slots=True)
class DispatchTable:
    """All families, in the order of the file: the particular before the general."""

    families: tuple[Family, ...]
    guards: re.Pattern[str]
    scrambled: re.Pattern[str]

    def family(self, name: str, source: str) -> str:
        """The family a function belongs to; empty for plain code and for functions without a name."""
        name = _PART.sub("", name)
        return next((family.name for family in self.families if family.has(name, source)), "")

    @property
    def contiguous(self) -> frozenset[str]:
        """Families between whose functions lies nothing but their own."""
        return frozenset(family.name for family in self.families if family.contiguous)

    def tells(self, name: str) -> bool:
        """Whether a name says anything: there is one, and it is no digest."""
        return bool(name) and not self.scrambled.search(name)

    def is_guard(self, name: str) -> bool:
        """Whether whoever refers to this name asks what the CPU can do."""
        return bool(self.guards.search(name))


@cache
def dispatch_table(arch: str) -> DispatchTable:
    """The table that comes with the package, for one architecture."""
    data = read_table("code.hostcode", "dispatch.toml", dict[str, Any])
    return DispatchTable(
        tuple(
            Family(
                row["name"],
                _any(row.get("names", ())),
                _any(row.get("sources", ())),
                row.get("contiguous", False),
            )
            for row in data["family"]
            if row.get("arch", arch) == arch
        ),
        _any(data["guards"]["names"]),
        _any(data["scrambled"]["names"]),
    )


def _any(patterns: list[str] | tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or _NEVER)
