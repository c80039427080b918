"""Stacked bars as inline SVG: readable without colour, without script, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from torchtailor.format import human_bytes
from torchtailor.report.chart import Bytes, Chart, LibraryRow
from torchtailor.verification.static.facts import HOST

_WIDTH, _LEFT, _RIGHT = 960, 310, 92
_BAR, _GAP, _SPACE = 17, 3, 16
_NAME, _NAME_WIDTH = 34, _LEFT - 62  # characters of a library's name that fit the column, and its width
_ROOMY = 26  # characters that fit it in any font
_CHARACTER = 6.6  # width of one in the labels inside bars


def colour_class(chart: Chart, label: str) -> str:
    """The CSS class of a label; host code is `host`."""
    return "host" if label == HOST else f"c{list(chart.labels).index(label)}"


def bars(chart: Chart) -> str:
    """All libraries, two bars each where the past is known."""
    rows, y = [], 6
    for row in chart.rows:
        drawn = "".join(_row(chart, row, y))
        rows.append(f'<g class="row" data-library="{escape(row.name)}">{drawn}</g>')
        y += (2 * _BAR + _GAP if row.before else _BAR) + _SPACE
    return _svg(
        "".join(rows), y, f"Bytes of {len(chart.rows)} libraries by architecture; the table below has the numbers"
    )


def totals(chart: Chart) -> str:
    """One pair of bars for everything."""
    whole = LibraryRow("all libraries", chart.now, chart.before)
    alone = Chart((whole,), chart.labels, chart.now, chart.before)
    drawn = "".join(_row(alone, whole, 6))
    height = 6 + (2 * _BAR + _GAP if whole.before else _BAR) + 8
    return _svg(f'<g class="row" data-library="total">{drawn}</g>', height, "Bytes of all libraries by architecture")


def _svg(content: str, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{content}</svg>'
    )


def _row(chart: Chart, row: LibraryRow, y: int) -> Iterator[str]:
    height = 2 * _BAR + _GAP if row.before else _BAR
    name = row.name.rsplit("/", 1)[-1]
    shown = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
    middle = y + height / 2 + 4
    fit = f' textLength="{_NAME_WIDTH}" lengthAdjust="spacingAndGlyphs"' if len(shown) > _ROOMY else ""
    yield f'<text class="name" x="{_NAME_WIDTH}" y="{middle}" text-anchor="end"{fit}>'
    yield f"<title>{escape(row.name)}</title>{escape(shown)}</text>"
    if row.before:
        yield from _bar(chart, row.before, y, "before")
        y += _BAR + _GAP
    yield from _bar(chart, row.now, y, "after" if row.before else "now")


def _bar(chart: Chart, size: Bytes, y: int, when: str) -> Iterator[str]:
    scale = (_WIDTH - _LEFT - _RIGHT) / max(chart.widest, 1)
    middle = y + _BAR / 2 + 4
    yield f'<text class="when" x="{_LEFT - 8}" y="{middle}" text-anchor="end">{when}</text>'
    x = float(_LEFT)
    for label in chart.labels:
        count = size.parts.get(label, 0)
        if not count:
            continue
        width = max(count * scale, 0.6)
        title = f"{label}: {human_bytes(count)}"
        yield (
            f'<rect class="{colour_class(chart, label)}" data-label="{escape(label)}" data-when="{when}" '
            f'data-bytes="{count}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="1.5">'
            f"<title>{escape(title)}</title></rect>"
        )
        if width > len(label) * _CHARACTER + 6:
            yield f'<text class="inside" x="{x + 4:.1f}" y="{middle - 0.5}">{escape(label)}</text>'
        x += width
    yield f'<text class="size" x="{x + 6:.1f}" y="{middle}">{human_bytes(size.total)}</text>'
