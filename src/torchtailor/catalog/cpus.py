"""CPU instruction sets and microarchitectures: which CPU runs code compiled for which ISA."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

# What CPU vendors put around the name that matters.
_NOISE = re.compile(
    r"\baws\b|\b1[0-9]th gen\b|\((?:r|tm)\)|\bcpu\b|\bprocessor\b|@.*$|\b\d+-cores?\b|\bwith radeon.*$", re.IGNORECASE
)


@dataclass(frozen=True)
class Isa:
    """An instruction set that variants are compiled for."""

    name: str
    arch: str
    label: str
    requires: frozenset[str]
    compile_flags: tuple[str, ...]
    seed_flags: tuple[str, ...]
    gcc_min: int
    clang_min: int
    workloads: tuple[str, ...]
    level: str = ""
    first: tuple[str, ...] = ()
    not_on: str = ""
    note: str = ""
    sources: tuple[str, ...] = field(default=(), repr=False)

    def missing_from(self, flags: Iterable[str]) -> tuple[str, ...]:
        """The required words that a CPU's flags lack, sorted; whole words, so avx_vnni is not avx512_vnni."""
        return tuple(sorted(self.requires - frozenset(flags)))

    def runs_on(self, flags: Iterable[str]) -> bool:
        return not self.missing_from(flags)

    def includes(self, other: Isa) -> bool:
        """Whether every CPU that runs this ISA also runs the other."""
        return self.arch == other.arch and other.requires <= self.requires


@dataclass(frozen=True, slots=True)
class Microarchitecture:
    """A CPU core and the /proc/cpuinfo words it has."""

    name: str
    arch: str
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class CpuName:
    """A pattern for the names people and machines use for a CPU."""

    pattern: re.Pattern[str]
    microarchitecture: str
    label: str

    def matches(self, name: str) -> bool:
        return bool(self.pattern.fullmatch(clean_cpu_name(name)))


def clean_cpu_name(name: str) -> str:
    """`Intel(R) Core(TM) i9-12900K CPU @ 3.2GHz` -> `intel core i9-12900k`."""
    return " ".join(_NOISE.sub(" ", name).lower().split())
