"""What tests were skipped for: a program of a Debian package that this machine does not have, or a right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec

import pytest

# Reasons of skipped tests by what would have to be there; the first that fits counts.
PACKAGES = {
    "nix-bin": r"\bnix",
    "chromium": r"chromium",
    "redis-server": r"redis",
    "skopeo": r"skopeo",
    "umoci": r"umoci",
    "docker-registry": r"docker-registry",
    "ccache": r"ccache",
    "cmake": r"cmake",
    "g++-x86-64-linux-gnu": r"x86_64-linux-gnu-|compiler for x86_64|x86_64 (as|gcc|g\+\+|objdump)|both compilers",
    "g++-aarch64-linux-gnu": r"aarch64-linux-gnu-|binutils for aarch64",
    "binutils": r"\b(nm|readelf|objdump|strip|binutils)\b|c\+\+filt",
    "g++": r"\b(cc|gcc)\b|\b[gc]\+\+|C compiler|C\+\+ compiler|sanitizer|workload hook",
}
_RIGHTS = {
    "root": r"\broot\b(?! (may|writes))",
    "a GPU": r"\bGPU\b|\bgpu\b",
    "a package index": r"\bindex\b|could not be (downloaded|fetched)",
}


def needs_module(*names: str) -> pytest.MarkDecorator:
    """For packages that take a while to import: every worker collects all tests, and few run those that need them."""
    lacking = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"{' and '.join(lacking)} is not installed")


def missing(reasons: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """How many tests were skipped for lack of each Debian package, and of what cannot be installed."""
    packages: Counter[str] = Counter()
    rights: Counter[str] = Counter()
    for reason in reasons:
        for counts, table in ((packages, PACKAGES), (rights, _RIGHTS)):
            name = next((name for name, pattern in table.items() if re.search(pattern, reason)), "")
            if name:
                counts[name] += 1
                break
    return packages, rights


def summary(reasons: Iterable[str]) -> list[str]:
    """Lines for the end of a run; none if nothing was missing."""
    packages, rights = missing(reasons)
    lines = []
    if packages:
        lines.append(f"Skipped for lack of Debian packages: {_listed(packages)}.")
        lines.append("As root, `.ci/run` installs them and runs all tests.")
    if rights:
        lines.append(f"Skipped for lack of what cannot be installed: {_listed(rights)}.")
    return lines


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())
