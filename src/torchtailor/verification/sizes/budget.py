"""Budgets: what sizes and growth a project allows itself, and what exceeds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from torchtailor.catalog.budgets import Allowance, Budget, amount
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.format import human_bytes
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, decode_toml, read_limited
from torchtailor.verification.sizes.compare import SizeChange, SizeComparison, unversioned


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
        return msgspec.convert(decode_toml(text), shaped(_File)).budget
    except FileNotFoundError as error:
        raise NoMatchError(f"{path} does not exist.", "Give a TOML file with a [budget] table.") from error
    except (OSError, ValueError, BadInputError, RecursionError) as error:
        raise UsageError(
            f"{path} has no budget that can be used: {str(error)[:300].rstrip('.')}.",
            "`torchtailor help sizes` shows one.",
        ) from error


def exceeded(comparison: SizeComparison, budget: Budget) -> Iterator[Exceeded]:
    """What is larger, or grew by more, than its allowance."""
    yield from _over("The total", comparison.total, budget.total)
    for _, allowance, changes in _matched(comparison, budget):
        for change in changes:
            yield from _over(change.name, change, allowance)


def unmatched(comparison: SizeComparison, budget: Budget) -> tuple[str, ...]:
    """The names in a budget that nothing has: spelt wrongly, or gone."""
    return tuple(pattern for pattern, _, changes in _matched(comparison, budget) if not changes)


def _matched(comparison: SizeComparison, budget: Budget) -> Iterator[tuple[str, Allowance, list[SizeChange]]]:
    """Each allowance with what it is for."""
    for allowances, changes in (
        (budget.package, comparison.packages),
        (budget.library, comparison.files),
        (budget.architecture, comparison.architectures),
    ):
        for pattern, allowance in allowances.items():
            yield pattern, allowance, [change for change in changes if _named(change.name, pattern)]


def _named(name: str, pattern: str) -> bool:
    """With its folder or without, with its version or without."""
    names = [form for one in (name, unversioned(name)) for form in (one, one.rpartition("/")[2])]
    return any(fnmatchcase(name, pattern) for name in names)


def _over(name: str, change: SizeChange, allowance: Allowance) -> Iterator[Exceeded]:
    if allowance.size and change.new > (allowed := amount(allowance.size)):
        yield Exceeded(name, "on disk", change.new, allowed)
    if allowance.packed and (change.new_packed or 0) > (allowed := amount(allowance.packed)):
        yield Exceeded(name, "compressed", change.new_packed or 0, allowed)
    if allowance.growth and change.growth > (allowed := amount(allowance.growth, change.old)):
        yield Exceeded(name, "growth", change.growth, allowed)
