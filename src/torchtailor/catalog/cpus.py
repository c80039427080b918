"""CPU instruction sets and microarchitectures: which CPU runs code compiled for which ISA."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from torchtailor.catalog.schema import Arch, Sourced, Strict

# What CPU vendors put around the name that matters.
_NOISE = re.compile(
    r"\((?:r|tm)\)|®|™|\baws\b|\b1?\d(?:st|nd|rd|th) gen\b|\b(?:cpu|processor|apu)s?\b|@.*$|"
    r"\b(?:\d+|dual|quad|six|eight|twelve|sixteen)-cores?\b|\b(?:with|w/) (?:radeon|amd).*$|\bradeon r\d.*$",
    re.IGNORECASE,
)
_VENDOR = re.compile(r"^(?:genuine )?(?:intel|amd) ")


class Isa(Sourced, frozen=True, kw_only=True):
    """An instruction set that variants are compiled for."""

    name: Annotated[
        str, Meta(pattern="^[a-z0-9_]+$", description="The name in variants' names: avx512; the key of the row.")
    ]
    arch: Annotated[Arch, Meta(description="The platform.")]
    label: Annotated[str, Meta(description="The name for readers: AVX-512.")]
    requires: Annotated[frozenset[str], Meta(description="The words of /proc/cpuinfo that a CPU must have.")]
    compile_flags: Annotated[tuple[str, ...], Meta(description="The compiler's flags.")]
    seed_flags: Annotated[tuple[str, ...], Meta(description="The flags of the published recipes, if others.")] = ()
    gcc_min: Annotated[int, Meta(description="The oldest GCC that knows the flags.")] = 0
    clang_min: Annotated[int, Meta(description="The oldest clang that knows the flags.")] = 0
    workloads: Annotated[
        tuple[str, ...], Meta(description="What it is for: general, bf16-training, int8-inference.")
    ] = ("general",)
    level: Annotated[str, Meta(description="Its place among the platform's levels.")] = ""
    first: Annotated[tuple[str, ...], Meta(description="The first CPUs that have it.")] = ()
    not_on: Annotated[str, Meta(description="CPUs that lack it though one would expect it.")] = ""

    def __post_init__(self) -> None:
        if not self.seed_flags:
            msgspec.structs.force_setattr(self, "seed_flags", self.compile_flags)

    def missing_from(self, flags: Iterable[str]) -> tuple[str, ...]:
        """The required words that a CPU's flags lack, sorted; whole words, so avx_vnni is not avx512_vnni."""
        return tuple(sorted(self.requires - frozenset(flags)))

    def runs_on(self, flags: Iterable[str]) -> bool:
        return not self.missing_from(flags)

    def includes(self, other: Isa) -> bool:
        """Whether every CPU that runs this ISA also runs the other."""
        return self.arch == other.arch and other.requires <= self.requires


class Microarchitecture(Strict, frozen=True, kw_only=True):
    """A CPU core and the /proc/cpuinfo words it has."""

    name: Annotated[str, Meta(description="archspec's name: zen4; the key of the row.")]
    arch: Annotated[str, Meta(description="The platform.")]
    flags: Annotated[frozenset[str], Meta(description="The words of /proc/cpuinfo that it has.")]
    status: Annotated[str, Meta(description="Whether the row is verified or believed.")] = ""
    sources: Annotated[tuple[str, ...], Meta(description="Where the facts come from: names in [sources].")] = ()


class CpuName(Strict, frozen=True, kw_only=True):
    """A pattern for the names people and machines use for a CPU."""

    pattern: Annotated[
        str, Meta(description="A regular expression for the whole name, in small letters, with or without the vendor.")
    ]
    microarchitecture: Annotated[str, Meta(description="The core that it means.")]
    label: Annotated[str, Meta(description="The name for readers.")]
    at_least: Annotated[
        bool, Meta(description="Whether the name hides the model, so that the core is the least that it can be.")
    ] = False
    with_gpu: Annotated[bool, Meta(description="Whether a GPU of this name always comes with this CPU.")] = False

    def check(self) -> None:
        """Raise ValueError where the pattern cannot be used."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is not a regular expression: {error}") from error

    def matches(self, name: str) -> bool:
        return any(re.fullmatch(self.pattern, known, re.IGNORECASE) for known in _spellings(name))


@lru_cache(maxsize=64)  # every row is asked about one name
def _spellings(name: str) -> tuple[str, str]:
    text = clean_cpu_name(name)
    return text, _VENDOR.sub("", text)


def clean_cpu_name(name: str) -> str:
    """`Intel(R) Core(TM) i9-12900K CPU @ 3.2GHz` -> `intel core i9-12900k`."""
    text = " ".join(_NOISE.sub(" ", name).lower().split())
    return re.sub(r"\b(i[3579]) (?=\d{4,5})", r"\1-", text)  # i7 6700k
