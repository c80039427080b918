"""A comparison as a few lines of Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtailor.core.format import human_bytes
from torchtailor.verification.sizes.budget import Exceeded
from torchtailor.verification.sizes.compare import SizeChange, SizeComparison

_CAUSES = 5
_ARCHITECTURES = 8  # more are one row


def markdown(comparison: SizeComparison, over: Sequence[Exceeded] = ()) -> str:
    """What changed, why, and the five largest causes."""
    return "\n".join([*_lines(comparison, over), ""])


def signed(growth: int) -> str:
    """`+1.2 MB`, `-300 kB`, `0`."""
    return f"{'+' if growth > 0 else '-'}{human_bytes(abs(growth))}" if growth else "0"


def share(change: SizeChange) -> str:
    """` (+3.1 %)`, ` (+171 %)`, ` (x 52)`; nothing where there was nothing before, or nothing changed."""
    if not change.old or not change.new or not change.growth:
        return ""
    percent = 100 * change.growth / change.old
    if percent >= 1000:
        return f" (x {change.new / change.old:,.0f})"
    return f" ({percent:+.{0 if abs(percent) >= 99.95 else 1}f} %)"


def _lines(comparison: SizeComparison, over: Sequence[Exceeded]) -> Iterator[str]:
    total = comparison.total
    yield f"**{_cell(comparison.new.name)}: {human_bytes(total.new)}, {signed(total.growth)}{share(total)}**"
    if total.old_packed is not None and total.new_packed is not None:
        packed = SizeChange("", total.old_packed, total.new_packed)
        yield f"(as a wheel {human_bytes(packed.new)}, {signed(packed.growth)}{share(packed)})"
    yield f"compared with {_cell(comparison.old.name)}."
    yield ""
    for one in over:
        yield f"- :x: {_cell(str(one))}"
    if over:
        yield ""
    yield from _table(
        "Architecture", [architecture for architecture in comparison.architectures if architecture.growth]
    )
    yield from _table("Largest causes", comparison.causes[:_CAUSES])


def _table(title: str, changes: Sequence[SizeChange]) -> Iterator[str]:
    if not changes:
        return
    yield f"| {title} | before | after | change |"
    yield "|---|---:|---:|---:|"
    for one in _few(changes):
        before, after = (human_bytes(size) if size else "none" for size in (one.old, one.new))
        yield f"| {_cell(one.name)} | {before} | {after} | {signed(one.growth)}{share(one)} |"
    yield ""


def _few(changes: Sequence[SizeChange]) -> Iterator[SizeChange]:
    """The first ones, and all others together."""
    yield from changes[:_ARCHITECTURES]
    if rest := changes[_ARCHITECTURES:]:
        yield SizeChange(f"{len(rest)} more", sum(one.old for one in rest), sum(one.new for one in rest))


def _cell(text: str) -> str:
    """A name from elsewhere, which must not end a cell or become markup."""
    return "".join(f"\\{letter}" if letter in "|\\`*_<>[]#@" else letter for letter in text)
