"""Why Nix failed, in a sentence, and what fixes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.core.errors import (
    BuildFailedError,
    EnvironmentProblem,
    ImpossibleError,
    NetworkError,
    NoMatchError,
    TorchtailorError,
)
from torchtailor.verification.failures import FailureTable, FoundFailure, find_failures, load_table

HASH_MISMATCH = "nix-hash"
BUILDER_FAILED = "builder-failed"
UNKNOWN = "unknown"

_ERRORS: dict[str, type[TorchtailorError]] = {
    "build": BuildFailedError,
    "environment": EnvironmentProblem,
    "impossible": ImpossibleError,
    "network": NetworkError,
    "no-match": NoMatchError,
}
_BUILDER = re.compile(r"(?:builder for|Cannot build) '(?:/[^']{0,200}/[0-9a-z]{32}-)?(?P<name>[^']{1,200})'")


@dataclass(frozen=True)
class NixFailure:
    """The cause of a failure: a known failure's id, or one of the two names above."""

    cause: str
    message: str
    hint: str
    kind: type[TorchtailorError] = BuildFailedError
    got: str = ""  # the hash that Nix found, of a mismatch

    def error(self) -> TorchtailorError:
        return self.kind(self.message, self.hint)


def explain(errors: str, tail: Sequence[str] = ()) -> NixFailure:
    """The cause of a failure, from Nix's messages and the last lines that the build printed."""
    table = load_table(FailureTable.NIX)
    order = {failure.id: number for number, failure in enumerate(table)}
    shared = {failure.id for failure in table if failure.shared}
    found = list(find_failures(errors, FailureTable.NIX))
    found += [failure for failure in find_failures("\n".join(tail), FailureTable.NIX) if failure.failure in shared]
    if found:
        first = min(found, key=lambda one: (order[one.failure], one.rank))
        return _known(first, table[order[first.failure]].error)
    return _unknown(errors, tail)


def _known(found: FoundFailure, kind: str) -> NixFailure:
    return NixFailure(found.failure, found.cause, found.fix, _ERRORS[kind], found.names.get("got", ""))


def _unknown(errors: str, tail: Sequence[str]) -> NixFailure:
    builder = _BUILDER.search(errors)
    if builder or any(tail):
        last = next((line.strip() for line in reversed(tail) if line.strip()), "it printed nothing")
        what = builder["name"].removesuffix(".drv") if builder else "The build"
        message = f"{what} failed; its last line is: {last}."
        return NixFailure(BUILDER_FAILED, message, "`torchtailor doctor LOG` explains a log.")
    first = next((line.strip() for line in errors.splitlines() if line.strip()), "it printed no message")
    return NixFailure(UNKNOWN, f"Nix failed: {first.removeprefix('error:').strip()}.", "The log has more.")
