"""Versions of dotted numbers, as drivers, toolkits and libraries have them."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Self

from torchtailor.catalog.schema import Word


class Dotted(Word):
    """A version of dotted numbers, compared number by number; zeros at its end do not count."""

    __slots__ = ("text",)
    pattern: ClassVar[str] = r"^[0-9]{1,18}(\.[0-9]{1,18})*$"

    def __init__(self, text: str) -> None:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"{text!r} is not a version of dotted numbers")
        super().__init__(tuple(int(part) for part in re.sub(r"(\.0+)+$", "", text).split(".")))
        self.text: Final = text

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(text)

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.text.split("."))

    @property
    def major(self) -> int:
        return self.parts[0]

    def __str__(self) -> str:
        return self.text


def python_key(python: str) -> tuple[Dotted, bool]:
    """Sorts 3.9 before 3.13 before 3.13t."""
    return Dotted(python.removesuffix("t")), python.endswith("t")
