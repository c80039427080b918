"""Stacked bars as inline SVG: readable without colour, without script, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from torchtailor.core.format import human_bytes
from torchtailor.verification.report.chart import Bytes, Chart, LibraryRow
from torchtailor.verification.result import HOST

_LEFT, _LENGTH = 16.0, 62.0  # per cent of the width: where bars begin, and the longest; the rest is for figures
_NAME_LINE, _BAR, _GAP, _SPACE = 16, 17, 3, 12
_NAME = 44  # characters of a library's name that are shown, which fit a telephone
_CHARACTER = 0.7  # per cent of a wide screen that a character takes in the labels inside bars


def colour_class(chart: Chart, label: str) -> str:
    """The CSS class of a label; host code is `host`."""
    return "host" if label == HOST else f"c{list(chart.labels).index(label)}"


def bars(chart: Chart) -> str:
    """All libraries, two bars each where the past is known."""
    rows, y = [], 6
    for row in chart.rows:
        drawn = "".join(_row(chart, row, y))
        rows.append(f'<g class="row" data-library="{escape(row.name)}">{drawn}</g>')
        y += _height(row) + _SPACE
    return svg(
        "".join(rows), y, f"Bytes of {len(chart.rows)} libraries by architecture; the table below has the numbers"
    )


def totals(chart: Chart, name: str = "all libraries") -> str:
    """One pair of bars for everything."""
    whole = LibraryRow(name, chart.now, chart.before)
    alone = Chart((whole,), chart.labels, chart.now, chart.before)
    drawn = "".join(_row(alone, whole, 6))
    height = 6 + _height(whole) + 8
    return svg(f'<g class="row" data-library="total">{drawn}</g>', height, "Bytes of all libraries by architecture")


def _height(row: LibraryRow) -> int:
    return _NAME_LINE + (2 * _BAR + _GAP if row.before else _BAR)


def svg(content: str, height: int, title: str) -> str:
    """Widths are in per cent: bars scale with the page, and text stays readable."""
    return (
        f'<svg width="100%" height="{height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{content}</svg>'
    )


def _row(chart: Chart, row: LibraryRow, y: int) -> Iterator[str]:
    name = row.name.rsplit("/", 1)[-1]
    shown = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
    yield f'<text class="name" x="0" y="{y + _NAME_LINE - 5}">'
    yield f"<title>{escape(row.name)}</title>{escape(shown)}</text>"
    y += _NAME_LINE
    if row.before:
        yield from _bar(chart, row.before, y, "before")
        y += _BAR + _GAP
    yield from _bar(chart, row.now, y, "after" if row.before else "now")


def _bar(chart: Chart, size: Bytes, y: int, when: str) -> Iterator[str]:
    scale = _LENGTH / max(chart.widest, 1)
    middle = y + _BAR / 2 + 4
    yield f'<text class="when" x="{_LEFT:g}%" dx="-8" y="{middle}" text-anchor="end">{when}</text>'
    x = _LEFT
    for label in chart.labels:
        count = size.parts.get(label, 0)
        if not count:
            continue
        width = max(count * scale, 0.06)
        title = f"{label}: {human_bytes(count)}"
        yield (
            f'<rect class="{colour_class(chart, label)}" data-label="{escape(label)}" data-when="{when}" '
            f'data-bytes="{count}" x="{x:.3f}%" y="{y}" width="{width:.3f}%" height="{_BAR}" rx="1.5">'
            f"<title>{escape(title)}</title></rect>"
        )
        if width > (len(label) + 1) * _CHARACTER:
            yield f'<text class="inside" x="{x:.3f}%" dx="4" y="{middle - 0.5}">{escape(label)}</text>'
        x += width
    yield f'<text class="size" x="{x:.3f}%" dx="6" y="{middle}">{human_bytes(size.total)}</text>'
