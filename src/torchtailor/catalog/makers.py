"""Who made a library: of NVIDIA's own more code stays, and the proprietary ones are cut only with --nvidia."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchtailor.core.tables import read_table


@dataclass(frozen=True, slots=True)
class Maker:
    """A maker whose libraries are recognised by name."""

    name: str
    proprietary: bool
    sonames: tuple[str, ...]
    open_sonames: tuple[str, ...]

    def made(self, name: str) -> bool:
        return name.startswith(self.sonames)

    def licensed_openly(self, name: str) -> bool:
        """Whether this one library of the maker may be changed and passed on freely."""
        return not self.proprietary or name.startswith(self.open_sonames)


def maker_of(path: Path | str, soname: str = "") -> Maker | None:
    """The maker of a library with this file name or soname; None for all others, who use plain nvcc."""
    for name in (soname, Path(path).name):
        if name:
            found = next((maker for maker in known_makers() if maker.made(name)), None)
            if found:
                return found
    return None


@cache
def known_makers() -> tuple[Maker, ...]:
    """All makers whose libraries are recognised."""
    return read_table("catalog", "makers.toml", dict[str, tuple[Maker, ...]])["maker"]
