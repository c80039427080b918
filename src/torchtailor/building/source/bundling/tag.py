"""The platform tag of a bundled wheel: auditwheel's, or the real glibc where that is newer than all it knows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.trees.wheels.name import GlibcVersion

_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_POLICY = re.compile(r"manylinux_(\d+)_(\d+)_\w+")


@dataclass(frozen=True, slots=True)
class PlatformTag:
    """Tags of a wheel, with a sentence where they say less or more than usual."""

    platforms: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        return ".".join(self.platforms)


def choose_tag(
    arch: str,
    *,
    platforms: Sequence[str],
    newest: str,
    unknown: Sequence[str],
    symbols: Sequence[str],
    own_glibc: GlibcVersion | None,
) -> PlatformTag:
    """The tag of a wheel; `unknown` are the versions of symbols that the newest policy of auditwheel does not have.

    Symbols of glibc say which one is needed. Those of libstdc++ and others do not: the system that has them is at least
    as new as this one, whose glibc is promised then.
    """
    if platforms:
        return PlatformTag(tuple(platforms))
    policy = _POLICY.fullmatch(newest)
    assert policy is not None
    limit = (int(policy[1]), int(policy[2]))
    needed = [(int(match[1]), int(match[2])) for symbol in symbols if (match := _GLIBC.fullmatch(symbol))]
    if any(not _GLIBC.fullmatch(symbol) for symbol in unknown) and own_glibc:
        needed.append(own_glibc)
    highest = max(needed, default=(0, 0))
    if unknown and highest > limit:
        tag = f"manylinux_{highest[0]}_{highest[1]}_{arch}"
        return PlatformTag((tag,), f"It needs glibc {highest[0]}.{highest[1]} or newer, as its tag {tag} says.")
    why = (
        f"it uses {unknown[0]}, which no manylinux tag promises" if unknown else "it uses private symbols of a library"
    )
    return PlatformTag(
        (f"linux_{arch}",), f"Its tag is linux_{arch}, which promises nothing about other systems: {why}."
    )


def own_glibc() -> GlibcVersion | None:
    """The glibc of this system; None on another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):
        return None
