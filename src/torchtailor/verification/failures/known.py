"""The catalogue of known failures: tables in data/*.toml, validated when loaded and compiled once.

Every pattern names a literal that its lines contain. Looking for a literal costs next to nothing, so the regular
expression is tried only on lines that can match it, however large the log is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import msgspec

from torchtailor.catalog.gpus import Capability
from torchtailor.catalog.load import load_catalog
from torchtailor.catalog.schema import Dotted
from torchtailor.core.tables import read_table

# A placeholder in a text whose name was not in the message.
UNNAMED = "an unnamed "
_STORE_PATH = re.compile(r"/[^\s'\"]{0,200}/[0-9a-z]{32}-")


class FailureTable(Enum):
    """The tables: how Nix, a build and a torch that runs can fail; what is more specific comes first."""

    NIX = "nix"
    RUNTIME = "runtime"
    BUILD = "build"


@dataclass(frozen=True, slots=True)
class AutoFix:
    """A fix that is safe to try without asking."""

    jobs: float | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


_compiled = cache(re.compile)  # when first needed: of thousands, a log needs a few


@dataclass(frozen=True, slots=True)
class Pattern:
    """A literal, the expression tried on lines that contain it, and what the lines after it add."""

    literal: bytes
    expression: str
    following: tuple[str, ...] = ()
    rank: int = 1

    @property
    def regex(self) -> re.Pattern[str]:
        return _compiled(self.expression)

    @property
    def then(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(_compiled, self.following))

    def search(self, line: str) -> re.Match[str] | None:
        """The match in a line; none where the line itself says that what is needed is there (`need`, `have`)."""
        match = self.regex.search(line)
        if (
            match
            and "need" in self.regex.groupindex
            and match["need"]
            and Dotted(match["have"]) >= Dotted(match["need"])
        ):
            return None
        return match


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One known failure: how it shows, why it happens, what fixes it."""

    id: str
    patterns: tuple[Pattern, ...]
    cause: str
    fix: str
    source: str
    table: FailureTable
    auto: AutoFix | None = None
    error: str = "build"  # the kind of error that a command ends with
    shared: bool = False  # another table's failure, with this table's words

    @property
    def rank(self) -> int:
        return min(pattern.rank for pattern in self.patterns)

    def explain(self, names: Mapping[str, str]) -> tuple[str, str]:
        """Cause and fix with the names of a message in them."""
        filled = _Filled(names)
        return self.cause.format_map(filled), self.fix.format_map(filled)


class _Filled(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return UNNAMED + key


def names_of(match: re.Match[str]) -> dict[str, str]:
    """The named groups of a match; `symbol2` is another place for `symbol`, and a Nix store path is its name."""
    return {re.sub(r"\d$", "", key): _plain(value) for key, value in match.groupdict().items() if value}


def _plain(value: str) -> str:
    return _STORE_PATH.sub("", value.strip(), count=1).removesuffix(".drv")


def with_toolkits(names: Mapping[str, str]) -> Mapping[str, str]:
    """The names of a message, and which CUDA compiles for the architecture among them."""
    if "arch" not in names:
        return names
    number = re.fullmatch(r"(?:sm|compute|lto)_(\d{2,3})[af]?", names["arch"])
    gpu = load_catalog().gpus.get(Capability.from_number(int(number[1]))) if number else None
    if gpu is None:
        toolkits = "No CUDA that is known compiles for it: correct its number"
    elif gpu.last_cuda is None:
        toolkits = f"Use CUDA {gpu.first_cuda} or newer, which compile for it"
    else:
        toolkits = f"Use CUDA {gpu.last_cuda} or older ({gpu.first_cuda} was the first for it)"
    return {**names, "toolkits": toolkits}


class _PatternRow(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    contains: str
    regex: str = ""
    then: tuple[str, ...] = ()
    rank: int | None = None

    def compile(self, rank: int) -> Pattern:
        regex = self.regex or re.escape(self.contains)
        return Pattern(self.contains.encode(), regex, self.then, self.rank or rank)


class _FailureRow(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: str
    cause: str
    fix: str
    source: str
    patterns: tuple[_PatternRow, ...] = ()
    codes: tuple[int, ...] = ()  # CUDA's errors, by number, name and text (cuda_errors.toml)
    rank: int = 1
    auto: AutoFix | None = None
    error: str = "build"
    shared: bool = False


class _CudaError(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    code: int
    name: str
    text: str
    driver: str = ""  # its name in the driver's interface


class _CudaErrors(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    error: tuple[_CudaError, ...]


_BEFORE_CODES = ("error ", "error: ", "error (", "failure ", "failure: ", "code ", "code: ", "code=", "returned ")
_BEFORE_THESE = (
    r"(?:(?i:cuda)(?i: driver| runtime| library| api| initiali[sz]ation| init){0,3}|\bcu(?:da)?[A-Z]\w{2,40}"
    r"(?:\([^)]{0,40}\))?) (?:(?:failed|failure) )?(?:with )?(?:error )?"
)
_BEFORE_TEXTS = (
    r"(?i:\bcu(?:da)?\w{0,40}\b.{0,60}?(?:error|fail|runtime|driver)|\[CUDA\]|cuda\w{1,40}).{0,100}?(?:[:'(]|CUDA) ?"
)


def _code_patterns(codes: tuple[int, ...], rank: int) -> Iterator[Pattern]:
    """`CUDA error: TEXT`, `cudaErrorNAME`, `CUDA_ERROR_NAME`, `cuInit returned 35`."""
    table = read_table("verification.failures", "cuda_errors.toml", _CudaErrors).error if codes else ()
    for error in (error for error in table if error.code in codes):
        longer = [other.text[len(error.text) :] for other in table if other.text.startswith(error.text + " ")]
        regex = re.escape(error.text) + "".join(f"(?!{re.escape(rest)})" for rest in longer)
        yield Pattern(error.text.encode(), _BEFORE_TEXTS + regex, rank=rank)
        for name in filter(None, (error.name, error.driver)):
            yield Pattern(name.encode(), rf"{name}\b", rank=rank)
    for literal in (f"{before}{code}" for code in codes for before in _BEFORE_CODES):
        yield Pattern(literal.encode(), rf"{_BEFORE_THESE}{re.escape(literal)}\b", rank=max(rank, 2))


class _TableFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    failure: tuple[_FailureRow, ...]
    error: tuple[_PatternRow, ...] = ()
    summary: tuple[_PatternRow, ...] = ()


@cache
def load_table(table: FailureTable) -> tuple[KnownFailure, ...]:
    """The failures of one table, in the file's order, which is their order of precedence."""
    return tuple(_failure(row, table) for row in _read(table).failure)


@cache
def load_failures() -> tuple[KnownFailure, ...]:
    """All known failures, each once."""
    return tuple(failure for table in FailureTable for failure in load_table(table) if not failure.shared)


@cache
def error_patterns() -> tuple[Pattern, ...]:
    """Lines that are an error, whatever it means."""
    return tuple(row.compile(1) for row in _read(FailureTable.BUILD).error)


@cache
def summary_patterns() -> tuple[Pattern, ...]:
    """Lines that only report that something else failed."""
    return tuple(row.compile(1) for row in _read(FailureTable.BUILD).summary)


@cache
def _read(table: FailureTable) -> _TableFile:
    return read_table("verification.failures", f"{table.value}.toml", _TableFile)


def _failure(row: _FailureRow, table: FailureTable) -> KnownFailure:
    rows: Sequence[_PatternRow] = row.patterns
    rank = row.rank
    if row.shared:
        original = next(other for other in _read(FailureTable.BUILD).failure if other.id == row.id)
        rows, rank = original.patterns, original.rank
    patterns = (*(pattern.compile(rank) for pattern in rows), *_code_patterns(row.codes, rank))
    return KnownFailure(row.id, patterns, row.cause, row.fix, row.source, table, row.auto, row.error, row.shared)
