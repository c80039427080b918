"""The same figures as bars in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchtailor.core.format import human_bytes
from torchtailor.verification.report.chart import Bytes, Chart, LibraryRow, chart
from torchtailor.verification.result import HOST

if TYPE_CHECKING:
    from rich.text import Text

# a letter for each label too, so that bars are readable without colour
_LETTERS = "ABCDEFGHIJ"
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow")
_NAME, _WHEN, _SIZE, _LEAST, _MOST = 28, 7, 10, 20, 80


def bars(facts: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Lines to print: a legend, two bars for each library, and the sum."""
    from rich.text import Text

    drawn = chart(facts)
    if not drawn.rows:
        return
    room = min(max(width - _NAME - _WHEN - _SIZE - 3, _LEAST), _MOST)
    yield Text("")
    legend = Text("  ")
    for label in drawn.labels:
        letter, colour = _look(drawn, label)
        legend.append(f"{letter} {label}   ", style=colour)
    yield legend
    for row in drawn.rows:
        yield from _row(drawn, row, room, drawn.widest)
    whole = LibraryRow("all libraries", drawn.now, drawn.before)
    yield Text("")
    yield from _row(drawn, whole, room, whole.widest)
    if drawn.before and drawn.before.total:
        saved = drawn.before.total - drawn.now.total
        yield Text(
            f"  saved {human_bytes(saved)} of {human_bytes(drawn.before.total)} ({saved / drawn.before.total:.0%})"
        )


def _row(drawn: Chart, row: LibraryRow, room: int, widest: int) -> Iterator[Text]:
    name = row.name.rsplit("/", 1)[-1]
    if len(name) > _NAME:
        name = name[: _NAME - 1] + "…"
    if row.before:
        yield _bar(drawn, row.before, f"{name:<{_NAME}} {'before':<{_WHEN}}", room, widest)
        name = ""
    yield _bar(drawn, row.now, f"{name:<{_NAME}} {'after' if row.before else '':<{_WHEN}}", room, widest)


def _bar(drawn: Chart, size: Bytes, head: str, room: int, widest: int) -> Text:
    from rich.text import Text

    line = Text(head + " ")
    used = 0
    reached = 0
    for label in drawn.labels:
        count = size.parts.get(label, 0)
        reached += count
        # rounded at the ends of parts, so that parts add up to the length of the whole
        end = round(reached / max(widest, 1) * room)
        letter, colour = _look(drawn, label)
        line.append(letter * (end - used), style=f"{colour} reverse" if label != HOST else "reverse dim")
        used = end
    line.append(f" {human_bytes(size.total)}")
    return line


def _look(drawn: Chart, label: str) -> tuple[str, str]:
    if label == HOST:
        return "·", "dim"
    place = list(drawn.labels).index(label) - 1
    return _LETTERS[place % len(_LETTERS)], _COLOURS[place % len(_COLOURS)]
