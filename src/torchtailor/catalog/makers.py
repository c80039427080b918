"""Who made a library: of NVIDIA's own more code stays, and the proprietary ones are cut only with --nvidia."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path


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
    text = files("torchtailor.catalog").joinpath("data/makers.toml").read_text("utf-8")
    return tuple(
        Maker(row["name"], row["proprietary"], tuple(row["sonames"]), tuple(row["open_sonames"]))
        for row in tomllib.loads(text)["maker"]
    )
