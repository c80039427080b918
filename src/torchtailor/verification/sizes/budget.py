"""Budgets: what sizes and growth a project allows itself, and what exceeds them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.format import human_bytes
from torchtailor.core.trust import Limit, read_limited
from torchtailor.verification.sizes.compare import Change, Comparison

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?i?b|%)", re.IGNORECASE)


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one thing may weigh, and by how much it may grow."""

    size: Annotated[str, Meta(description="on disk: `600 MB`, `1.5 GiB`")] = ""
    packed: Annotated[str, Meta(description="as compressed in wheels")] = ""
    growth: Annotated[str, Meta(description="of the size on disk: `10 MB`, `2 %`")] = ""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The allowances of a project; names may have `*`."""

    total: Allowance = Allowance()
    package: Mapping[str, Allowance] = {}
    library: Annotated[Mapping[str, Allowance], Meta(description="by its file name or path")] = {}
    architecture: Annotated[Mapping[str, Allowance], Meta(description="`sm_90`, `compute_120`")] = {}


class _File(msgspec.Struct, frozen=True):
    """A file with a budget; torchtailor.toml has other tables too."""

    budget: Budget


@dataclass(frozen=True, slots=True)
class Exceeded:
    """An allowance that is not kept."""

    name: str
    what: str  # `on disk`, `compressed`, `growth`
    size: int
    allowed: int

    def __str__(self) -> str:
        over, size, allowed = map(human_bytes, (self.size - self.allowed, self.size, self.allowed))
        is_now = f"grew by {size}" if self.what == "growth" else f"has {size} {self.what}"
        return f"{self.name} {is_now}, {over} more than the {allowed} allowed."


def read_budget(path: Path) -> Budget:
    """The [budget] of a file."""
    try:
        text = read_limited(path, Limit.CONFIGURATION).decode("utf-8")
        budget = msgspec.convert(tomllib.loads(text), _File).budget
        for allowance in (
            budget.total,
            *budget.package.values(),
            *budget.library.values(),
            *budget.architecture.values(),
        ):
            _check(allowance)
    except FileNotFoundError as error:
        raise NoMatchError(f"{path} does not exist.", "Give a TOML file with a [budget] table.") from error
    except (OSError, ValueError, BadInputError, RecursionError) as error:
        raise UsageError(
            f"{path} has no budget that can be used: {str(error)[:300].rstrip('.')}.", "`torchtailor help sizes` shows one."
        ) from error
    return budget


def exceeded(comparison: Comparison, budget: Budget) -> Iterator[Exceeded]:
    """What is larger, or grew by more, than its allowance."""
    yield from _over("The total", comparison.total, budget.total)
    for _, allowance, changes in _matched(comparison, budget):
        for change in changes:
            yield from _over(change.name, change, allowance)


def unmatched(comparison: Comparison, budget: Budget) -> tuple[str, ...]:
    """The names in a budget that nothing has: spelt wrongly, or gone."""
    return tuple(pattern for pattern, _, changes in _matched(comparison, budget) if not changes)


def _matched(comparison: Comparison, budget: Budget) -> Iterator[tuple[str, Allowance, list[Change]]]:
    """Each allowance with what it is for."""
    for allowances, changes in (
        (budget.package, comparison.packages),
        (budget.library, comparison.files),
        (budget.architecture, comparison.architectures),
    ):
        for pattern, allowance in allowances.items():
            yield pattern, allowance, [change for change in changes if _named(change.name, pattern)]


def _named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)


def amount(text: str, whole: int = 0) -> int:
    """`600 MB`, `1.5 GiB`, or `2 %` of something, in bytes."""
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text[:80]!r} is not a size such as 600 MB, 1.5 GiB or, of growth, 2 %")
    number, unit = float(match[1]), match[2].lower()
    return int(whole * number / 100) if unit == "%" else int(number * _UNITS[unit])


def _check(allowance: Allowance) -> None:
    for text in (allowance.size, allowance.packed):
        if text.strip().endswith("%"):
            raise ValueError(f"{text!r} is a share: only growth can be one")
    for text in filter(None, (allowance.size, allowance.packed, allowance.growth)):
        amount(text)


def _over(name: str, change: Change, allowance: Allowance) -> Iterator[Exceeded]:
    if allowance.size and change.new > (allowed := amount(allowance.size)):
        yield Exceeded(name, "on disk", change.new, allowed)
    if allowance.packed and (change.new_packed or 0) > (allowed := amount(allowance.packed)):
        yield Exceeded(name, "compressed", change.new_packed or 0, allowed)
    if allowance.growth and change.growth > (allowed := amount(allowance.growth, change.old)):
        yield Exceeded(name, "growth", change.growth, allowed)
