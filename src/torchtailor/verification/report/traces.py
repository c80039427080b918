"""The page of traces: what programs used of each library and which files they opened, side by side."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torchtailor.core.disk import write_output
from torchtailor.core.documents import plain
from torchtailor.core.format import counted, human_bytes
from torchtailor.core.version import __version__
from torchtailor.verification.report.parts import card, command_line, encoded, legend, size_cell, table, whole_page
from torchtailor.verification.report.svg import svg
from torchtailor.workload.trace import Trace, TracedLibrary, merge_traces, trace_facts

_LENGTH = 60.0  # per cent of the width: the longest bar; the rest is for figures
_NAME_LINE, _BAR, _GAP, _SPACE = 16, 15, 3, 12
_COLOURS = 10
_PACKAGES = 12  # that are listed by name


@dataclass(frozen=True)
class NamedTrace:
    """A trace and what the page calls it."""

    name: str
    trace: Trace


def write_trace_report(traces: Mapping[str, Trace], path: Path) -> None:
    """Write the page whole or not at all; traces are given by the paths of their files."""
    write_output(path, encoded(render_traces(traces)))


def render_traces(traces: Mapping[str, Trace]) -> str:
    """The page as one string."""
    named = [NamedTrace(name, traces[path]) for path, name in _short_names(traces).items()]
    names = ", ".join(one.name for one in named)
    return whole_page(
        "traces.html",
        title=f"{names}: torchtailor trace",
        document={"traces": plain([trace_facts(trace, path) for path, trace in traces.items()])},
        heading=escape(names),
        answer=_answer(named),
        cards="".join(map(_card, named)),
        used=_used(named),
        opened=_opened(named),
        cut=_cut(traces),
        made_by=escape(f"torchtailor {__version__}"),
    )


def _short_names(paths: Mapping[str, Trace]) -> dict[str, str]:
    """By its path, the name of a file; the whole path where two have the same name."""
    counts = Counter(Path(path).name for path in paths)
    return {path: name if counts[name := Path(path).name] == 1 else path for path in paths}


def _answer(named: Sequence[NamedTrace]) -> str:
    whole = merge_traces(one.trace for one in named)
    has = sum(library.stored for library in whole.libraries)
    number = counted(len(whole.libraries), "library", "libraries")
    if len(named) == 1:
        used = f"{human_bytes(whole.stored_used)} of {human_bytes(has)}"
        line = f"<strong>{used}</strong>: what was used of the GPU code of {number}."
    else:
        line = f"{len(named)} traces, which used parts of {number} with {human_bytes(has)} of GPU code."
    lost = "".join(f"<p>Not recorded: {escape(what)}</p>" for what in whole.lost)
    return f'<p class="answer">{line}</p>{lost}'


def _card(one: NamedTrace) -> str:
    trace = one.trace
    note = (
        f"in {counted(len(trace.libraries), 'library', 'libraries')}; {counted(len(trace.opened), 'file')} opened, "
        f"{counted(trace.processes, 'process', 'processes')}, label {trace.label}"
    )
    return card(one.name, human_bytes(trace.stored_used), note, "used", trace.stored_used)


def _libraries(named: Sequence[NamedTrace]) -> list[tuple[TracedLibrary, tuple[TracedLibrary | None, ...]]]:
    """Each library that a trace has, with what each trace has of it; those of which most was used first."""
    each = [{library.identity: library for library in one.trace.libraries} for one in named]
    whole = merge_traces(one.trace for one in named)
    rows = [(library, tuple(one.get(library.identity) for one in each)) for library in whole.libraries]
    return sorted(rows, key=lambda row: (-_most(row[1]), row[0].name, row[0].identity))


def _most(each: Sequence[TracedLibrary | None]) -> int:
    return max(one.stored_used if one else 0 for one in each)


def _used(named: Sequence[NamedTrace]) -> str:
    rows = _libraries(named)
    if not rows:
        return "<p>No GPU code was loaded.</p>"
    colours = legend((_colour(index), one.name) for index, one in enumerate(named))
    widest = max(_most(each) for _, each in rows)
    drawn, y = [], 6
    for library, each in rows:
        bars = "".join(_bars(named, library, each, y, widest))
        drawn.append(f'<g class="row" data-library="{escape(library.name)}">{bars}</g>')
        y += _NAME_LINE + len(each) * (_BAR + _GAP) + _SPACE
    title = f"GPU code used of {counted(len(rows), 'library', 'libraries')}; the table below has the numbers"
    return f"{colours}{svg(''.join(drawn), y, title)}{_table(named, rows)}"


def _colour(index: int) -> str:
    return f"c{index % _COLOURS + 1}"


def _bars(
    named: Sequence[NamedTrace], library: TracedLibrary, each: Sequence[TracedLibrary | None], y: int, widest: int
) -> Iterator[str]:
    """A bar for each trace, with words beside it: they are told apart without colours."""
    yield f'<text class="name" x="0" y="{y + _NAME_LINE - 5}">{escape(library.name)}</text>'
    y += _NAME_LINE
    for index, one in enumerate(each):
        used = one.stored_used if one else 0
        width = used * _LENGTH / max(widest, 1)
        said = f"{human_bytes(used)} of {human_bytes(library.stored)}" if one else "not used"
        said = f"{named[index].name}: {said}" if named[1:] else said
        if one:
            yield (
                f'<rect class="{_colour(index)}" data-trace="{index}" data-bytes="{used}" x="0" y="{y}" '
                f'width="{max(width, 0.06):.3f}%" height="{_BAR}" rx="1.5"><title>{escape(said)}</title></rect>'
            )
        yield f'<text class="size" x="{width:.3f}%" dx="6" y="{y + _BAR - 4}">{escape(said)}</text>'
        y += _BAR + _GAP


def _table(named: Sequence[NamedTrace], rows: Sequence[tuple[TracedLibrary, tuple[TracedLibrary | None, ...]]]) -> str:
    groups = ("The library has", *(one.name for one in named))
    above = "<td></td>" + "".join(f'<th scope=colgroup colspan="2">{escape(name)}</th>' for name in groups)
    body = (
        f'<tr data-library="{escape(library.name)}"><th scope=row>{escape(library.name)}</th>'
        f"<td>{library.containers}</td>{size_cell(library.stored)}{''.join(map(_cells, each))}</tr>"
        for library, each in rows
    )
    total = "".join(
        f"<td>{sum(len(library.used) for library in one.trace.libraries)}</td>{size_cell(one.trace.stored_used)}"
        for one in named
    )
    has = sum(library.stored for library, _ in rows)
    containers = sum(library.containers for library, _ in rows)
    heads = ("Library", "Containers", "GPU code", *("Containers", "Used") * len(named))
    foot = f"<th scope=row>All</th><td>{containers}</td>{size_cell(has)}{total}"
    return table(heads, body, name="used", foot=foot, above=above)


def _cells(one: TracedLibrary | None) -> str:
    if one is None:
        return "<td></td><td></td>"
    return f"<td>{len(one.used)}</td>{size_cell(one.stored_used)}"


def _opened(named: Sequence[NamedTrace]) -> str:
    """How many files of each package, and which."""
    each = [Counter(path.split("/")[0] for path in one.trace.opened) for one in named]
    packages = sorted({name for counts in each for name in counts}, key=lambda name: -max(c[name] for c in each))
    if not packages:
        return "<p>The traces name no files: they were made of misses alone.</p>"
    shown = packages[:_PACKAGES] if len(packages) > _PACKAGES + 1 else packages
    rest = packages[len(shown) :]
    body = [_package(package, [counts[package] for counts in each]) for package in shown]
    if rest:
        body.append(_package(f"{len(rest)} others", [sum(counts[package] for package in rest) for counts in each]))
    total = "".join(f"<td>{len(one.trace.opened)}</td>" for one in named)
    lists = "".join(
        f"<details><summary>All files of {escape(one.name)}</summary><pre>{escape(chr(10).join(one.trace.opened))}"
        "</pre></details>"
        for one in named
        if one.trace.opened
    )
    heads = ("In site-packages", *(one.name for one in named))
    return table(heads, body, name="opened", foot=f"<th scope=row>All</th>{total}") + lists


def _package(name: str, counts: Sequence[int]) -> str:
    return f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{count or str()}</td>' for count in counts)}</tr>"


def _cut(paths: Mapping[str, Trace]) -> str:
    """The command for all of them."""
    traces = " ".join(f"--workload {shlex.quote(path)}" for path in paths)
    command = f"torchtailor tailor --env .venv --gpu native --nvidia {traces}"
    kept = "It keeps what the traces name, and moves the rest that the GPU could run into packs."
    return f"{command_line(command)}<p>{kept}</p>"
