"""Types that msgspec reads data into, for programs with several threads."""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import msgspec

Shape = TypeVar("Shape")

_ready: set[object] = set()
_one_at_a_time = Lock()


def shaped(shape: Shape) -> Shape:
    """The type, ready for use: msgspec crashes where a thread uses one that another uses for the first time."""
    if shape not in _ready:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(shape)
            _ready.add(shape)
    return shape
