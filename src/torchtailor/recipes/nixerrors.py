"""Why Nix failed, in a sentence, and what mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from torchtailor.errors import (
    BuildFailedError,
    EnvironmentProblem,
    ImpossibleError,
    NetworkError,
    NoMatchError,
    TorchtailorError,
)


class Cause(Enum):
    """The causes that are told apart."""

    HASH_MISMATCH = "hash mismatch"
    UNSUPPORTED_SYSTEM = "unsupported system"
    UNFREE = "unfree"
    BROKEN = "broken"
    MISSING_ATTRIBUTE = "missing attribute"
    WRONG_ARGUMENT = "wrong argument"
    OUT_OF_DISK = "out of disk"
    OUT_OF_MEMORY = "out of memory"
    NO_PERMISSION = "no permission"
    NETWORK = "network"
    SYNTAX = "syntax"
    BUILDER = "builder failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NixFailure:
    """One cause with its explanation."""

    cause: Cause
    message: str
    hint: str
    kind: type[TorchtailorError]
    got: str = ""

    def error(self) -> TorchtailorError:
        return self.kind(self.message, self.hint)


@dataclass(frozen=True)
class _Pattern:
    cause: Cause
    pattern: re.Pattern[str]
    message: str
    hint: str
    kind: type[TorchtailorError] = BuildFailedError
    in_log: bool = False  # looked for in what the build printed, too


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


_NAME = r"'?(?P<what>[^'\n]+?)'?"
# In this order: the first that matches is the cause.
_PATTERNS = (
    _Pattern(
        Cause.HASH_MISMATCH,
        _pattern(
            rf"hash mismatch in (?:fixed-output derivation|file downloaded from) {_NAME}:?\n"
            r".*?(?:specified|wanted):\s*(?P<specified>\S+)\s+got:\s*(?P<got>\S+)"
        ),
        "The hash of {what} is {got}, the recipe says {specified}.",
        "`torchtailor recipes hash NAME` writes the right one; if the hash was known before, find out why it changed.",
    ),
    _Pattern(
        Cause.OUT_OF_DISK,
        _pattern(r"No space left on device"),
        "The disk is full.",
        "A build needs 20 GB: free some with `nix-collect-garbage -d`, or give another folder in TMPDIR.",
        EnvironmentProblem,
        in_log=True,
    ),
    _Pattern(
        Cause.OUT_OF_MEMORY,
        _pattern(
            r"failed due to signal 9|Killed signal terminated program|virtual memory exhausted|std::bad_alloc"
            r"|Out of memory|Cannot allocate memory|failed with exit code 137"
        ),
        "The build ran out of memory.",
        "Build with fewer jobs (`--cores 2`), or add swap: a compiler of PyTorch takes up to 5 GB.",
        EnvironmentProblem,
        in_log=True,
    ),
    _Pattern(
        Cause.UNFREE,
        _pattern(r"[Pp]ackage .(?P<what>[^'‘’]+). .{0,200}?has an unfree license"),
        "{what} is unfree, and nixpkgs refuses it.",
        "Set `allowUnfree = true;` in the recipe's nixpkgs configuration; `torchtailor recipes write` does.",
    ),
    _Pattern(
        Cause.BROKEN,
        _pattern(r"[Pp]ackage .(?P<what>[^'‘’]+). .{0,200}?is marked as broken"),
        "{what} is marked as broken in nixpkgs.",
        "Set `allowBroken = true;` in the recipe's nixpkgs configuration, as `torchtailor recipes write` does.",
    ),
    _Pattern(
        Cause.UNSUPPORTED_SYSTEM,
        _pattern(
            r"[Pp]ackage .(?P<what>[^'‘’]+). .{0,200}?is not (?:available on the requested hostPlatform|supported on)"
        ),
        "{what} is not for this kind of machine.",
        "Build it on a machine of its platform; `torchtailor recommend` says what fits this one.",
        ImpossibleError,
    ),
    _Pattern(
        Cause.UNSUPPORTED_SYSTEM,
        _pattern(r"a '(?P<what>[\w-]+)' with features \{[^}]*\} is required to build .*?but I am a '(?P<host>[\w-]+)'"),
        "The build is for {what}, and this machine is {host}.",
        "Build it there, or give Nix a remote builder; `torchtailor recommend` says what fits this machine.",
        ImpossibleError,
    ),
    _Pattern(  # the same, as newer versions say it
        Cause.UNSUPPORTED_SYSTEM,
        _pattern(r"Required system: '(?P<what>[\w-]+)'.*?Current system: '(?P<host>[\w-]+)'"),
        "The build is for {what}, and this machine is {host}.",
        "Build it there, or give Nix a remote builder; `torchtailor recommend` says what fits this machine.",
        ImpossibleError,
    ),
    _Pattern(
        Cause.MISSING_ATTRIBUTE,
        _pattern(r"attribute '(?P<what>[^']+)' (?:missing|in selection path '[^']+' not found)"),
        "nixpkgs at this pin has no {what}.",
        "Name a package set or package that the pin has; `torchtailor recipes check` tells what is wrong.",
        NoMatchError,
    ),
    _Pattern(
        Cause.WRONG_ARGUMENT,
        _pattern(r"called with(?:out required argument| unexpected argument) '(?P<what>[^']+)'"),
        "A function of nixpkgs does not take (or lacks) the argument {what}.",
        "`torchtailor recipes check` shows the line.",
    ),
    _Pattern(
        Cause.SYNTAX,
        _pattern(r"syntax error, (?P<what>[^\n]+)"),
        "The recipe is not valid Nix: {what}.",
        "`torchtailor recipes check` shows the line.",
    ),
    _Pattern(
        Cause.NETWORK,
        _pattern(
            r"unable to download '(?P<what>[^']+)'|Could not resolve host: (?P<host>\S+)|Couldn't resolve host"
            r"|Connection timed out|unable to access '(?P<where>[^']+)'"
        ),
        "A download failed{detail}.",
        "Look at the network, then run the same command again: Nix goes on where it stopped.",
        NetworkError,
        in_log=True,
    ),
    _Pattern(
        Cause.NO_PERMISSION,
        _pattern(
            r"(?:creating directory|opening lock file|opening file|cannot open connection to remote store)"
            r" '?(?P<what>[^':\n]+)'?: .*?(?:Permission denied|Read-only)"
        ),
        "Nix may not write to {what}.",
        "Start the Nix daemon, join its group, or run as the owner of the store.",
        EnvironmentProblem,
    ),
)


def explain(errors: str, tail: Sequence[str] = ()) -> NixFailure:
    """The cause of a failure, from what Nix said and the last lines that the build printed."""
    printed = "\n".join(tail)
    for row in _PATTERNS:
        match = row.pattern.search(errors) or (row.pattern.search(printed) if row.in_log else None)
        if match:
            return _failure(row, match)
    builder = re.search(r"(?:builder for|Cannot build) '(?P<what>[^']+)'", errors)
    if builder or printed:
        last = next((line.strip() for line in reversed(tail) if line.strip()), "it printed nothing")
        what = _short(builder["what"]) if builder else "The build"
        return NixFailure(
            Cause.BUILDER,
            f"{what} failed; its last line is: {last}.",
            "`torchtailor diagnose` explains a log.",
            BuildFailedError,
        )
    first = next((line.strip() for line in errors.splitlines() if line.strip()), "Nix does not say why")
    return NixFailure(
        Cause.UNKNOWN, f"Nix failed: {first.removeprefix('error:').strip()}.", "The log says more.", BuildFailedError
    )


def _failure(row: _Pattern, match: re.Match[str]) -> NixFailure:
    groups = {name: _short(value) for name, value in match.groupdict().items() if value}
    detail = next((value for name, value in groups.items() if name in ("what", "host", "where")), "")
    words = {**groups, "detail": f": {detail}" if detail else ""}
    words.setdefault("what", "the package")
    return NixFailure(row.cause, row.message.format(**words), row.hint, row.kind, got=groups.get("got", ""))


def _short(text: str) -> str:
    """A store path as people read it: the name alone."""
    name = re.sub(r"^.*/[0-9a-z]{32}-", "", text.strip())
    return name.removesuffix(".drv")
