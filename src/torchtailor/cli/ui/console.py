"""The two consoles (results on stdout, all else on stderr) and what is drawn on them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

Item = TypeVar("Item")


@cache
def out() -> Console:
    """Results: what a pipe or a file should receive."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """Progress, warnings, explanations of what is being done."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    from torchtailor.core.format import printable

    class CleanConsole(Console):
        """Shows nothing that a terminal would obey: names and messages come from elsewhere."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                clean = segment.text if segment.control else printable(segment.text)
                yield segment if clean == segment.text else Segment(clean, segment.style)

    if (sys.stderr if stderr else sys.stdout).isatty():
        return CleanConsole(stderr=stderr, highlight=False)
    # Nobody's window: a script that reads a table wants one line a row.
    return CleanConsole(stderr=stderr, highlight=False, soft_wrap=True, width=1000)


_SHORTEST = 24  # letters of a path that are shown in any window
_printed = 0


def print_json(name: str, result: object, **more: object) -> None:
    """Write one JSON document to stdout, with its schema as the first key: that of a result, or of its top-level keys;
    `more` are fields that the result does not have."""
    from torchtailor.cli.ui.documents import DOCUMENTS, document_type, schema_of
    from torchtailor.core.documents import document, json_text, plain
    from torchtailor.core.format import printable_json

    global _printed  # noqa: PLW0603  (one process writes one document)
    shape = document_type(name) if name in DOCUMENTS else type(result)  # a build method of one's own has its own
    values = plain(document(shape, result, **more))
    whole = {"schema": schema_of(name)} | {key: value for key, value in values.items() if key != "schema"}
    sys.stdout.write(printable_json(json_text(whole, indent=2)) + "\n")
    _printed += 1


_lines_are_json = False


def json_lines(wanted: bool | None = None) -> bool:
    """Whether stderr has one JSON object a line, and nothing else; a command sets it, for all that is said later."""
    global _lines_are_json  # noqa: PLW0603
    _lines_are_json = _lines_are_json if wanted is None else wanted
    return _lines_are_json


def print_event(event: Mapping[str, object]) -> None:
    """Write one JSON object to stderr, in a line of its own."""
    sys.stderr.write(json.dumps(event) + "\n")
    sys.stderr.flush()


def printed_documents() -> int:
    """How many JSON documents were written so far."""
    return _printed


def print_text(text: str) -> None:
    """Write plain text, such as a table in Markdown, to stdout."""
    from torchtailor.core.format import printable

    sys.stdout.write(printable(text))


def hanging(line: Text, head: int) -> Text:
    """A line whose further lines on a terminal stand below the column where its text begins."""
    from rich.text import Text

    console = out()
    if line.no_wrap or not console.is_terminal:
        return line
    lines = line[head:].wrap(console, max(console.width - head, _SHORTEST), overflow="fold")
    for one in lines:
        one.rstrip()
    return Text.assemble(line[:head], Text("\n" + " " * head).join(lines))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    optional: Sequence[str] = (),
    paths: bool = False,
) -> Table:
    """A plain table; where the window is too narrow for it, it goes without the optional columns, first ones first, and
    of `paths` in its first column the ends are shown. An optional column in which nothing is is not shown at all."""
    empty = [name for at, name in enumerate(columns) if name in optional and not any(str(row[at]) for row in rows)]
    columns, rows = _without(columns, rows, empty)
    for name in optional:
        if _width(columns, rows).maximum <= out().width:
            break
        columns, rows = _without(columns, rows, [name])
    if paths and rows and (over := _width(columns, rows).maximum - out().width) > 0:
        longest = max(len(str(row[0])) for row in rows)
        rows = [[_end_of(str(row[0]), max(longest - over, _SHORTEST)), *row[1:]] for row in rows]
    width = _width(columns, rows)
    return _table(
        columns, rows, title, narrow=width.minimum > out().width, natural=width.maximum <= out().width and bool(rows)
    )


def _without(
    columns: Sequence[str], rows: Sequence[Sequence[object]], names: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    kept = [index for index, column in enumerate(columns) if column not in names]
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]


_LONG = 5.0  # seconds without a word
_LITTLE = 100_000  # bytes
_FEW = 20  # rows
_SHARE = 500  # of all together: what is less than one such part is little, where there are many rows


def apart(items: Iterable[Item], size: Callable[[Item], int]) -> tuple[list[Item], list[Item]]:
    """What is worth a row of a table, and what is summed up in one: all below 100 kB, or of many rows below a share of
    them all, if these are several, and not the few that there are."""
    every = list(items)
    limit = _LITTLE
    if sum(size(one) >= limit for one in every) > _FEW:
        limit = max(limit, sum(map(size, every)) // _SHARE)
    little = [one for one in every if size(one) < limit]
    if len(little) < 2 or len(little) == len(every) <= _FEW:
        return every, []
    return [one for one in every if size(one) >= limit], little


def _end_of(path: str, room: int) -> str:
    """A path, or as much of its end as there is room for: whole parts of it if they fit."""
    if len(path) <= room:
        return path
    end = path[len(path) - room + 1 :]
    return f"…{end[end.index('/') :]}" if "/" in end[:-1] else f"…{end}"


def _width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Measurement:
    """How wide the table is; of each column the longest cell and the one of the longest word say it for all."""
    from rich.measure import Measurement

    cells = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    longest = [max(column, key=_longest_line) for column in cells]
    words = [max(column, key=lambda cell: max(map(len, cell.split()), default=0)) for column in cells]
    console = out()
    few = _table(columns, [longest, words] if rows else [], None, like=rows)
    return Measurement.get(console, console.options.update(max_width=10_000), few)


def _longest_line(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.splitlines()), default=0)


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    title: str | None,
    *,
    narrow: bool = False,
    natural: bool = False,
    like: Sequence[Sequence[object]] | None = None,
) -> Table:
    """Columns whose cells are all numeric (`like` has them all) are right-aligned and never folded; names are, where it
    is too narrow. Where there is room for all (`natural`), widths are given and each column is drawn as one cell: rich
    takes seconds for the cells of thousands of rows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from torchtailor.core.format import printable

    drawn = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        cells = [str(row[index]) for row in (rows if like is None else like)]
        numeric = bool(cells) and all(not cell or cell[0].isdigit() for cell in cells)
        whole = numeric or (index == 0 and not narrow)
        drawn.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=whole,
            width=max(map(_longest_line, map(printable, (column, *cells)))) if natural else None,
        )
    lines = [[cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row] for row in rows]
    if natural and not any("\n" in cell.plain for row in lines for cell in row):
        lines = [[Text("\n").join(column) for column in zip(*lines, strict=True)]]
    for row in lines:
        drawn.add_row(*row)
    return drawn


@contextmanager
def working(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Says what is being done from the first second on, where somebody watches; elsewhere a line if it takes long."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with err().status(text):
            yield
    else:
        late = threading.Timer(_LONG, lambda: err().print(f"{text} ...", markup=False))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()


def progress(*, quiet: bool = False, threads: bool = True) -> Progress:
    """A progress display on stderr, of a terminal only; without threads its owner draws it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=err(),
        auto_refresh=threads,
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
