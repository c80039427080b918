"""Budgets of a project: what it may weigh, and by how much it may grow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

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

    def __post_init__(self) -> None:
        for allowance in (
            self.total,
            *self.package.values(),
            *self.library.values(),
            *self.architecture.values(),
        ):
            _check(allowance)


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
