"""Which of many literals occur in a block of a log: one pass for all of them, not one for each.

Every four bytes of the block set a mark in a small table; a literal can only occur where all of its own are marked.
Without numpy, which is part of the extra `verify`, there is a pass for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

try:
    import numpy as np
except ImportError:
    if not TYPE_CHECKING:
        np = None

_GRAM = 4
_BITS = 17
_FACTOR = 2654435761  # Knuth's multiplicative hash


class Literals:
    """A set of literals to look for."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        known = sorted(set(literals))
        self._short = [literal for literal in known if np is None or len(literal) < _GRAM]
        self._long = [literal for literal in known if np is not None and len(literal) >= _GRAM]
        if np is None:
            return
        marks = [_marks(literal) for literal in self._long]
        self._marks = np.concatenate(marks) if marks else np.zeros(0, np.uint32)
        self._starts = np.cumsum([0, *(len(mark) for mark in marks[:-1])]) if marks else np.zeros(0, np.intp)

    def found_in(self, block: bytes) -> set[bytes]:
        """Those that the block holds."""
        found = {literal for literal in self._short if literal in block}
        if len(block) >= _GRAM and self._long:
            seen = np.zeros(1 << _BITS, np.bool_)
            seen[_marks(block)] = True
            possible = np.logical_and.reduceat(seen[self._marks], self._starts)
            found.update(self._long[index] for index in np.flatnonzero(possible) if self._long[index] in block)
        return found


def _marks(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    grams = np.ndarray((len(data) - _GRAM + 1,), np.dtype("<u4"), data, strides=(1,))
    return (grams * np.uint32(_FACTOR)) >> np.uint32(32 - _BITS)
