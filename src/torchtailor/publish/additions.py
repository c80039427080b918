"""Adding to what several publishers write: object stores have no locks, so what another overwrote is added again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchtailor.core.errors import NetworkError

_TRIES = 5

K = TypeVar("K")
V = TypeVar("V")


def add_entries(
    page: str,
    read: Callable[[], dict[K, V]],
    added: Callable[[dict[K, V]], dict[K, V]],
    write: Callable[[dict[K, V]], None],
) -> None:
    """Read, merge, write, and read again: another publisher may have written in between."""
    for _ in range(_TRIES):
        known = read()
        new = added(known)
        joined = known | new
        if joined == known:
            return
        write(joined)
        now = read()
        if now | new == now:
            return
    raise NetworkError(f"{page} keeps being overwritten by another publisher.", "Run the same command again.")
