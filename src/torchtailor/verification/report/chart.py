"""The chart of a report, from its facts: bytes per library and architecture, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtailor.verification.result import HOST

OTHERS = "other architectures"
_LIBRARIES = 14
_LABELS = 9
_SMALLEST = 0.01  # of the largest library: a bar below that cannot be seen


@dataclass(frozen=True, slots=True)
class Bytes:
    """The size of something by what it is made of: host code and GPU code of each architecture."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def gpu(self) -> int:
        return self.total - self.parts.get(HOST, 0)


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One library: what it is now, and what it was where that is known."""

    name: str
    now: Bytes
    before: Bytes | None

    @property
    def widest(self) -> int:
        return max(self.now.total, self.before.total if self.before else 0)


@dataclass(frozen=True, slots=True)
class Chart:
    """All rows, their labels in the order in which they are drawn, and totals."""

    rows: tuple[LibraryRow, ...]
    labels: tuple[str, ...]
    now: Bytes
    before: Bytes | None  # None where not one library's past is known

    @property
    def widest(self) -> int:
        return max((row.widest for row in self.rows), default=0)


def chart(facts: Mapping[str, Any]) -> Chart:
    """The chart of a report's facts; small libraries are drawn as one row."""
    return chart_of([_row(library) for library in facts.get("libraries", ())])


def chart_of(rows: Sequence[LibraryRow], *, ordered: bool = True) -> Chart:
    """The largest rows first, unless they have an order of their own; then all of them."""
    if ordered:
        rows = sorted(rows, key=lambda row: -row.widest)
    labels = _labels(rows)
    known = any(row.before for row in rows)
    rows = [_folded(row, labels, known=known) for row in rows]
    seen = [row for row in rows if row.widest >= rows[0].widest * _SMALLEST]
    shown = seen[:_LIBRARIES] if ordered else rows
    rest = rows[len(shown) :]
    if len(rest) == 1:
        shown += rest
    elif rest:
        name = f"{len(rest)} smaller libraries"
        shown.append(
            LibraryRow(name, _sum([r.now for r in rest]), _sum([r.before for r in rest if r.before]) if known else None)
        )
    return Chart(
        tuple(shown),
        labels,
        _sum([row.now for row in rows]),
        _sum([row.before for row in rows if row.before]) if known else None,
    )


def _row(library: Mapping[str, Any]) -> LibraryRow:
    before = library.get("before")
    return LibraryRow(library["name"], Bytes(library["bytes"]), Bytes(before["bytes"]) if before else None)


def _labels(rows: Sequence[LibraryRow]) -> tuple[str, ...]:
    """Host code first, then architectures by name; the smallest of many share one label."""
    sizes: Counter[str] = Counter()
    for row in rows:
        for one in (row.now, row.before):
            if one:
                sizes.update(one.parts)
    codes = [label for label, size in sizes.most_common() if label != HOST and size]
    kept = sorted(codes[:_LABELS], key=label_order)
    return (HOST, *kept, *([OTHERS] if len(codes) > _LABELS else []))


def label_order(label: str) -> tuple[str, int, str]:
    """sm_90 before sm_100, PTX after cubins."""
    kind, _, number = label.partition("_")
    digits = "".join(ch for ch in number if ch.isdigit())
    return ({"sm": "0", "compute": "1"}.get(kind, "2"), int(digits or 0), label)


def _folded(row: LibraryRow, labels: Sequence[str], *, known: bool) -> LibraryRow:
    now = _fold(row.now, labels)
    # a library whose past nobody wrote down was not touched
    before = _fold(row.before or row.now, labels) if known else None
    return LibraryRow(row.name, now, before)


def _fold(size: Bytes, labels: Sequence[str]) -> Bytes:
    parts: Counter[str] = Counter()
    for label, count in size.parts.items():
        parts[label if label in labels else OTHERS] += count
    return Bytes({label: parts[label] for label in (*labels, OTHERS) if parts[label]})


def _sum(sizes: Sequence[Bytes]) -> Bytes:
    parts: Counter[str] = Counter()
    for size in sizes:
        parts.update(size.parts)
    return Bytes(dict(parts))
