"""The table of bundling (`data/bundle.toml`), read and validated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from torchtailor.catalog.makers import known_makers
from torchtailor.catalog.schema import Strict
from torchtailor.core.tables import read_table

_OF_NVIDIA = "made by NVIDIA: it comes in wheels of its own, or with CUDA"


class LeftOut(Strict, frozen=True):
    """Libraries that are never bundled, and why."""

    why: str
    names: tuple[str, ...]


class LicenceText(Strict, frozen=True):
    """A licence, known by its words."""

    pattern: str
    name: str


class _File(Strict, frozen=True):
    tools: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    licence: tuple[LicenceText, ...]


@dataclass(frozen=True)
class BundleTables:
    """What is bundled, and with which programs."""

    tools: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    licences: tuple[LicenceText, ...]

    @property
    def excluded(self) -> tuple[str, ...]:
        """The file names that are never bundled, with wildcards."""
        return tuple(name for row in self.left_out for name in row.names)

    def why_left_out(self, name: str) -> str | None:
        """Why a library stays with the system; None where it should be bundled."""
        return next((row.why for row in self.left_out if any(fnmatchcase(name, one) for one in row.names)), None)

    def licence_of(self, text: str) -> str | None:
        """The licence that a free text is known to be."""
        return next((row.name for row in self.licences if re.search(row.pattern, text)), None)


@cache
def load_bundle_tables() -> BundleTables:
    """The package's table, with the libraries of NVIDIA."""
    read = read_table("building.source.bundling", "bundle.toml", _File)
    nvidia = LeftOut(_OF_NVIDIA, tuple(f"{name}*" for maker in known_makers() for name in maker.sonames))
    return BundleTables(read.tools, (nvidia, *read.left_out), read.licence)
