"""How TOML becomes domain types: strict tables, values written as one word (versions), and errors that name table and
key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import total_ordering
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from torchtailor.core.shapes import shaped

T = TypeVar("T")

_ARCHS = ("x86_64", "aarch64")
Arch = Annotated[str, Meta(pattern=f"^({'|'.join(_ARCHS)})$", extra_json_schema={"enum": list(_ARCHS)})]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table in which a misspelt key is an error."""


class Sourced(Strict, frozen=True, kw_only=True):
    """A row of facts, with where they come from."""

    note: Annotated[str, Meta(description="A remark for readers.")] = ""
    verified: Annotated[tuple[str, ...], Meta(description="Which facts were measured or read at the source.")] = ()
    believed: Annotated[tuple[str, ...], Meta(description="Which facts were not verified.")] = ()
    sources: Annotated[tuple[str, ...], Meta(description="Where the facts come from: names in [sources].")] = ()


@total_ordering
class Word:
    """A value that is written as one word, in TOML as in messages; compared by its key."""

    __slots__ = ("_hash", "key")
    pattern: ClassVar[str]  # how it is written, for the JSON schema

    def __init__(self, key: tuple[int, ...]) -> None:
        self.key: Final = key
        self._hash: Final = hash(key)  # once: the keys of most tables are words

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.key == other.key

    def __lt__(self, other: Word) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def decode(document: Mapping[str, Any], shape: type[T], labels: Mapping[str, str]) -> T:
    """A document as a type, or a ValueError that says which row and key is wrong.

    `labels` names, for each table of rows, the key whose value stands for a row in an error.
    """
    try:
        return msgspec.convert(document, shaped(shape), dec_hook=_parsed)
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(_named(str(error), document, shape), document, labels)) from error


def _named(text: str, document: Mapping[str, Any], shape: type[T]) -> str:
    """The same with the name of a section, which msgspec leaves out: `$.farm[...].workers` -> `$.farm.rack.workers`."""
    found = re.search(r"`\$\.(\w+)\[\.\.\.\]", text)
    if found is None:
        return text
    table = found[1]
    for name, section in document[table].items():
        try:
            msgspec.convert({table: {name: section}}, shaped(shape), dec_hook=_parsed)
        except msgspec.ValidationError as error:
            return str(error).replace(f"{table}[...]", f"{table}.{name}", 1)
    return text


def _parsed(kind: Any, value: object) -> object:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r}")
    return kind.parse(value)


_ERROR = re.compile(r"(?P<problem>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field (`.*`)")
_MISSING = re.compile(r"Object missing required field (`.*`)")


def _sentence(text: str, document: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """`Expected ... - at $.gpu[3].hosts[0]` -> `[[gpu]] 7.5, hosts: expected ...`.

    Numbers of rows are left out: they count the catalog's own rows too.
    """
    match = _ERROR.fullmatch(text)
    assert match is not None
    problem = _UNKNOWN.sub(r"unknown key \1", _MISSING.sub(r"missing key \1", match["problem"]))
    problem = problem[0].lower() + problem[1:]
    path = match["path"] or ""
    place = re.match(r"(\w+)\[(\d+)\]", path)
    if place is None:
        return f"{path}: {problem}" if path else problem
    table, row, rest = place[1], document[place[1]][int(place[2])], re.sub(r"\[\d+\]", "", path[place.end() :])
    label = row.get(labels.get(table, "")) if isinstance(row, Mapping) else None
    return f"[[{table}]]{f' {label}' if label else ''}{rest.replace('.', ', ', 1)}: {problem}"


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
