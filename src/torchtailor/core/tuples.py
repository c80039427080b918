"""Named tuples by the hundred thousand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

TupleT = TypeVar("TupleT", bound=tuple[Any, ...])


def quickly(kind: type[TupleT]) -> Callable[[tuple[Any, ...]], TupleT]:
    """A function that makes one of a tuple of all its fields, in a third of the time that a call of the class takes."""
    return cast("Callable[[tuple[Any, ...]], TupleT]", partial(tuple.__new__, kind))
