"""Python values as JSON that the runtime turns back into objects: only the fields that the program reads."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from torchtailor.catalog.schema import Word
from torchtailor.site.compiler.program import Definition, NotCompilable
from torchtailor.site.compiler.translate import Translator

# The first item of a list says what it is; a larger number is a class, counted from FIRST_CLASS on.
_LIST, _DICT, _SET, _ENUM, _PATTERN = range(5)
FIRST_CLASS = 5


class Encoder:
    """Encodes values, and counts the classes that they are of."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self.classes: dict[Definition, int] = {}

    def encode(self, value: Any) -> Any:
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
            return value
        if isinstance(value, Enum):
            return [_ENUM, self._class(type(value)), value.name]
        if isinstance(value, re.Pattern):
            return [_PATTERN, value.pattern, value.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL)]
        if isinstance(value, Mapping):
            return [_DICT, *(self.encode(part) for pair in value.items() for part in pair)]
        if isinstance(value, set | frozenset):
            return [_SET, *sorted((self.encode(one) for one in value), key=repr)]
        if isinstance(value, list | tuple):
            return [_LIST, *map(self.encode, value)]
        number = self._class(type(value))
        if isinstance(value, Word):
            self._translator.attributes.add("parse")
            return [number, str(value)]
        return [number, *(self.encode(getattr(value, name)) for name in self.fields(type(value)))]

    def fields(self, kind: type) -> tuple[str, ...]:
        """The fields of a class that the program reads, in the class's order; none of words, which are parsed."""
        used = self._translator.attributes
        if issubclass(kind, Word):
            return ()
        if issubclass(kind, msgspec.Struct):
            names: tuple[str, ...] = kind.__struct_fields__
        elif dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
        else:
            raise NotCompilable(f"values of {kind.__name__} cannot be written")
        return tuple(name for name in names if name in used)

    def _class(self, kind: type) -> int:
        item = Definition(kind.__module__, kind.__qualname__)
        self._translator.need(item)
        return self.classes.setdefault(item, FIRST_CLASS + len(self.classes))


def archspec_targets() -> dict[str, list[Any]]:
    """archspec's table of microarchitectures, each after those that it builds on, with the features it adds to them."""
    from archspec.cpu import TARGETS

    rows: dict[str, list[Any]] = {}
    for target in sorted(TARGETS.values(), key=lambda one: len(one.ancestors)):
        inherited = {word for parent in target.parents for word in parent.features}
        kept = inherited <= set(target.features)
        rows[target.name] = [
            target.vendor,
            [parent.name for parent in target.parents],
            [ancestor.name for ancestor in target.ancestors],
            sorted(set(target.features) - inherited if kept else target.features),
            int(kept),
            target.cpu_part,
            str(target.family),
        ]
    return rows
