"""Pages of sizes: bars, tables of what changed, and a map in which every byte has its area."""

from __future__ import annotations

from html import escape
from pathlib import Path

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchtailor.core.disk import write_output
from torchtailor.core.format import human_bytes, printable
from torchtailor.core.version import __version__
from torchtailor.verification.inspection.measure import Sizes
from torchtailor.verification.report.chart import OTHERS, Bytes, Chart, LibraryRow, chart_of, label_order
from torchtailor.verification.report.parts import breakable, encoded, legend, section, table, whole_page
from torchtailor.verification.report.svg import bars, colour_class, totals
from torchtailor.verification.result import HOST
from torchtailor.verification.sizes.compare import SizeComparison
from torchtailor.verification.sizes.history import HistoryDocument
from torchtailor.verification.sizes.markdown import signed
from torchtailor.verification.sizes.sections import comparing, in_words
from torchtailor.verification.sizes.tree import tree_of


def write_page(shown: Sizes | SizeComparison, path: Path) -> None:
    """Write the page of one artifact, or of two that are compared, whole or not at all."""
    write_output(path, encoded(render(shown)), unchanged="Nothing else was written.")


def write_history(shown: HistoryDocument, path: Path) -> None:
    """Write the page of a project's releases whole or not at all."""
    write_output(path, encoded(render_history(shown)), unchanged="Nothing else was written.")


def render(shown: Sizes | SizeComparison) -> str:
    """The page as one string."""
    old, new = (shown.old, shown.new) if isinstance(shown, SizeComparison) else (None, shown)
    drawn = chart_of([LibraryRow("", Bytes(_parts(new)), Bytes(_parts(old)) if old else None)])
    colours = {label: colour_class(drawn, label) for label in drawn.labels}
    marks = legend((colours[label], _meaning(label, drawn, old, new)) for label in drawn.labels)
    name = f"{_pair(old, new)}" if old else _short(new.name)
    return whole_page(
        "sizes.html",
        title=f"{name}: torchtailor {'diff' if old else 'sizes'}",
        document={"tree": msgspec.to_builtins(tree_of(_short(new.name), new, old, colours))},
        scripts=("treemap.js",),
        heading=breakable(printable(name)),
        answer="".join(f'<p class="answer">{line}</p>' for line in _answer(shown)),
        sections=section("At a glance", totals(drawn, "all files") + marks)
        + ("".join(comparing(shown)) if isinstance(shown, SizeComparison) else "")
        + section("Where the bytes are", _MAP),
        command="diff" if old else "sizes",
        made_by=escape(f"torchtailor {__version__}"),
    )


def render_history(shown: HistoryDocument) -> str:
    """The page of a project's releases as one string."""
    rows = [
        LibraryRow(
            release.version,
            Bytes(
                {HOST: release.size - release.gpu}
                | {name: size for name, size in release.architectures.items() if name}
            ),
            None,
        )
        for release in shown.releases
    ]
    drawn = chart_of(rows, ordered=False)
    lines = [
        f"<tr><th scope=row>{escape(release.version)}</th><td>{human_bytes(release.packed)}</td>"
        f"<td>{human_bytes(release.size)}</td><td>{human_bytes(release.gpu)}</td>"
        f"<td>{escape(', '.join(f'{cause.name} {signed(cause.growth)}' for cause in release.causes[:4]))}</td></tr>"
        for release in shown.releases
    ]
    heads = ("Release", "Wheel", "Installed", "GPU code", "Largest changes")
    marks = legend((colour_class(drawn, label), label) for label in drawn.labels)
    return whole_page(
        "sizes.html",
        title=f"{shown.project}: sizes of its releases",
        document=msgspec.to_builtins(shown),
        heading=escape(f"{shown.project}: {len(shown.releases)} releases"),
        answer="",
        sections=section("Installed, by what it is", bars(drawn) + marks) + section("In figures", table(heads, lines)),
        command="sizes",
        made_by=escape(f"torchtailor {__version__}"),
    )


_MAP = """<p>Area is size, colour is what it is for. Open a part with a click or Enter; Escape goes back.</p>
<nav aria-label="Where you are"><ol class="path" id="treemap-path"></ol></nav>
<div id="treemap" tabindex="-1"></div>
<div class=scroll tabindex=0><table class="numbers" aria-label="The same as a table"><thead><tr><th scope=col>Part</th>
<th scope=col>Size</th><th scope=col>Share</th><th scope=col>Change</th></tr></thead>
<tbody id="treemap-rows"></tbody></table></div>"""


def _answer(shown: Sizes | SizeComparison) -> list[str]:
    if isinstance(shown, SizeComparison):
        names = " → ".join(breakable(printable(_short(side.name))) for side in (shown.old, shown.new))
        return [*in_words(shown), f"<small>{names}</small>"]
    packed = f", compressed {human_bytes(shown.packed)}" if shown.packed else ""
    return [f"<strong>{human_bytes(shown.total)}</strong>{packed}."]


def _pair(old: Sizes, new: Sizes) -> str:
    """`demo 1.0 → 1.1` for two wheels of one project, and else both names."""
    names = [_short(side.name) for side in (old, new)]
    try:
        (project, before, *_), (other, after, *_) = map(parse_wheel_filename, names)
    except InvalidWheelFilename:
        return " → ".join(names)
    return f"{project} {before} → {after}" if project == other and before != after else " → ".join(names)


def _meaning(label: str, drawn: Chart, *sides: Sizes | None) -> str:
    """A label of the chart, and what it stands for where that is not in its name."""
    if label == HOST:
        return f"{label}: all that is no GPU code"
    if label != OTHERS:
        return label
    others = {row.code for side in sides if side for row in side.rows} - {"", *drawn.labels}
    return f"{label}: {', '.join(sorted(others, key=label_order))}"


def _parts(sizes: Sizes) -> dict[str, int]:
    """GPU code by architecture, and all else."""
    parts = {name: total.size for name, total in sizes.by(lambda row: row.code).items()}
    return {HOST: sizes.total - sum(parts.values())} | parts


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name
