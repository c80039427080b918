"""Pages of sizes: bars, and a map in which every byte has its area, from packages down to kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import msgspec

from torchtailor.catalog import load_catalog
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Suffix
from torchtailor.core.disk import write_output
from torchtailor.core.format import human_bytes, printable
from torchtailor.core.version import __version__
from torchtailor.verification.inspection.kernels import HOST as HOST_FUNCTIONS
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.measure import SizeRow, Sizes
from torchtailor.verification.inspection.parts import CONTAINERS, PLAIN_FILES, ByteClass
from torchtailor.verification.report.chart import Bytes, LibraryRow, chart_of
from torchtailor.verification.report.parts import encoded, legend, table, whole_page
from torchtailor.verification.report.svg import bars, colour_class, totals
from torchtailor.verification.result import HOST
from torchtailor.verification.sizes.compare import KernelChange, SizeChange, SizeComparison, unversioned
from torchtailor.verification.sizes.history import HistoryDocument
from torchtailor.verification.sizes.markdown import share, signed

_CAUSES = 20
_FEW = 4
_WORTH = 0.001  # of everything: smaller changes are one row
_SMALL = 0.0005  # of everything: what is smaller is drawn together


class _Node(msgspec.Struct):
    """One area of the map."""

    name: str
    size: int = 0
    old: int | msgspec.UnsetType = msgspec.UNSET
    colour: str = ""
    children: list[_Node] = []


def write_page(shown: Sizes | SizeComparison, path: Path) -> None:
    """Write the page of one artifact, or of two that are compared, whole or not at all."""
    write_output(path, encoded(render(shown)), unchanged="Nothing else was written.")


def write_history(shown: HistoryDocument, path: Path) -> None:
    """Write the page of a project's releases whole or not at all."""
    write_output(path, encoded(render_history(shown)), unchanged="Nothing else was written.")


def render(shown: Sizes | SizeComparison) -> str:
    """The page as one string."""
    comparison = shown if isinstance(shown, SizeComparison) else None
    sizes = shown.new if isinstance(shown, SizeComparison) else shown
    drawn = chart_of([LibraryRow("", Bytes(_parts(sizes)), Bytes(_parts(comparison.old)) if comparison else None)])
    colours = {label: colour_class(drawn, label) for label in drawn.labels}
    sections = [
        _section("At a glance", totals(drawn, "all files") + legend((colours[label], label) for label in drawn.labels))
    ]
    if comparison:
        sections.append(_section("What changed most", _changes("What", _worth_a_row(comparison), "causes")))
        if architectures := [one for one in comparison.architectures if one.growth]:
            rows = _changes("Code for", architectures, "architectures", _meaning())
            sections.append(_section("By architecture", rows))
        if kernels := _kernels(comparison):
            rows = _changes(
                "Kernel", [change for change, _ in kernels], "kernels", {one.name: of for one, of in kernels}
            )
            sections.append(_section("Kernels of all libraries", _UNPACKED + rows))
    sections.append(_section("Where the bytes are", _MAP))
    return whole_page(
        "sizes.html",
        title=f"{sizes.name}: torchtailor {'diff' if comparison else 'sizes'}",
        document={"tree": msgspec.to_builtins(_tree(sizes, comparison.old if comparison else None, colours))},
        scripts=("treemap.js",),
        heading=escape(printable(_short(sizes.name))),
        answer="".join(f'<p class="answer">{line}</p>' for line in _answer(sizes, comparison)),
        sections="".join(sections),
        command="diff" if comparison else "sizes",
        made_by=escape(f"torchtailor {__version__}"),
    )


def render_history(shown: HistoryDocument) -> str:
    """The page of a project's releases as one string."""
    rows = [
        LibraryRow(
            one.version,
            Bytes({HOST: one.size - one.gpu} | {name: size for name, size in one.architectures.items() if name}),
            None,
        )
        for one in shown.releases
    ]
    drawn = chart_of(rows, ordered=False)
    lines = [
        f"<tr><th scope=row>{escape(one.version)}</th><td>{human_bytes(one.packed)}</td>"
        f"<td>{human_bytes(one.size)}</td><td>{human_bytes(one.gpu)}</td>"
        f"<td>{escape(', '.join(f'{cause.name} {signed(cause.growth)}' for cause in one.causes[:4]))}</td></tr>"
        for one in shown.releases
    ]
    heads = ("Release", "Wheel", "Installed", "GPU code", "Largest changes")
    marks = legend((colour_class(drawn, label), label) for label in drawn.labels)
    return whole_page(
        "sizes.html",
        title=f"{shown.project}: sizes of its releases",
        document=msgspec.to_builtins(shown),
        heading=escape(f"{shown.project}: {len(shown.releases)} releases"),
        answer="",
        sections=_section("Installed, by what it is", bars(drawn) + marks)
        + _section("In figures", table(heads, lines)),
        command="sizes",
        made_by=escape(f"torchtailor {__version__}"),
    )


_UNPACKED = """<p>Bytes as they are unpacked: in files GPU code is compressed, so these are more than those above.
A row is a function, or all instances of a template, for all architectures together;
(shared by functions) are headers, symbols and strings.</p>"""
_MAP = """<p>Area is size, colour is what it is for. Open a part with a click or Enter; Escape goes back.</p>
<nav aria-label="Where you are"><ol class="path" id="treemap-path"></ol></nav>
<div id="treemap" tabindex="-1"></div>
<div class=scroll tabindex=0><table class="numbers" aria-label="The same as a table"><thead><tr><th scope=col>Part</th>
<th scope=col>Size</th><th scope=col>Share</th><th scope=col>Change</th></tr></thead>
<tbody id="treemap-rows"></tbody></table></div>"""


def _section(title: str, body: str) -> str:
    return f'<section aria-label="{escape(title)}"><h2>{escape(title)}</h2>{body}</section>'


def _answer(sizes: Sizes, comparison: SizeComparison | None) -> Iterable[str]:
    packed = f", compressed {human_bytes(sizes.packed)}" if sizes.packed else ""
    if comparison is None:
        yield f"<strong>{human_bytes(sizes.total)}</strong>{packed}."
        return
    total = comparison.total
    yield (
        f"<strong>{signed(total.growth)}</strong>{share(total)}: {human_bytes(total.old)} became "
        f"{human_bytes(total.new)}{packed}; before: {escape(printable(_short(comparison.old.name)))}."
    )
    if changed := [one for one in comparison.classes if abs(one.growth) >= _WORTH * total.new][:_FEW]:
        yield f"By kind: {', '.join(f'{one.name} {signed(one.growth)}' for one in changed)}."
    codes = [one for one in comparison.architectures if one.name != CONTAINERS]
    went = [
        _went(word, [one.name for one in codes if one.verdict == verdict], side)
        for word, verdict, side in (("New", "new", comparison.new), ("Gone", "gone", comparison.old))
    ]
    if codes:
        yield escape(" ".join(filter(None, went)) or "The architectures are the same as before.")


def _went(word: str, codes: Sequence[str], sizes: Sizes) -> str:
    """`New: code for sm_103, sm_110 (libnvjpeg.so).`; without the libraries where these are many."""
    files = {unversioned(row.file).rpartition("/")[2] for row in sizes.rows if row.code in codes}
    where = f" ({', '.join(sorted(files))})" if len(files) <= _FEW else ""
    return f"{word}: code for {', '.join(codes)}{printable(where)}." if codes else ""


def _worth_a_row(comparison: SizeComparison) -> list[SizeChange]:
    """The causes that somebody would look at, and all others together."""
    least = _WORTH * max(comparison.total.old, comparison.total.new)
    causes = [one for one in comparison.causes if abs(one.growth) >= least][:_CAUSES]
    rest = comparison.causes[len(causes) :]
    old, new = sum(one.old for one in rest), sum(one.new for one in rest)
    return [*causes, *([SizeChange(f"{len(rest)} smaller changes", old, new)] if rest else [])]


def _kernels(comparison: SizeComparison) -> list[tuple[SizeChange, str]]:
    """The kernels that changed most, of all libraries and architectures together, and which architectures these are."""
    by_name: dict[str, list[KernelChange]] = {}
    for one in comparison.functions:
        by_name.setdefault(one.name, []).append(one)
    changes = [
        (
            SizeChange(name, sum(one.old for one in each), sum(one.new for one in each)),
            ", ".join(sorted({one.code for one in each})),
        )
        for name, each in by_name.items()
    ]
    changed = [change for change in changes if change[0].growth]
    return sorted(changed, key=lambda change: (-abs(change[0].growth), change[0].name))[:_CAUSES]


def _meaning() -> Mapping[str, str]:
    """Which GPUs the names of architectures stand for."""
    said = {CONTAINERS: "headers around GPU code"}
    for capability, gpu in load_catalog().gpus.items():
        for suffix in Suffix:
            said |= {
                f"{CodeTarget(CodeKind.CUBIN, capability, suffix)}": gpu.describe(),
                f"{CodeTarget(CodeKind.PTX, capability, suffix)}": "PTX, which newer GPUs compile when they load it",
                f"{CodeTarget(CodeKind.LTOIR, capability, suffix)}": "LTO-IR, which is linked when it is loaded",
            }
    return said


def _changes(what: str, changes: Iterable[SizeChange], name: str, meaning: Mapping[str, str] | None = None) -> str:
    rows = []
    for one in changes:
        more = f"<br><small>{escape(meaning[one.name])}</small>" if meaning and one.name in meaning else ""
        rows.append(
            f"<tr><th scope=row>{escape(printable(one.name))}{more}</th><td>{human_bytes(one.old) if one.old else ''}"
            f"</td><td>{human_bytes(one.new) if one.new else ''}</td><td>{signed(one.growth)}</td>"
            f"<td>{one.verdict}</td></tr>"
        )
    return table((what, "Before", "After", "Change", "Result"), rows, name=name) if rows else "<p>Nothing.</p>"


def _parts(sizes: Sizes) -> Mapping[str, int]:
    """GPU code by architecture, and all else."""
    parts = {name: total.size for name, total in sizes.by(lambda row: row.code).items()}
    return {HOST: sizes.total - sum(parts.values())} | parts


def _tree(sizes: Sizes, old: Sizes | None, colours: Mapping[str, str]) -> _Node:
    """Packages, their files, what is in them, and the kernels of that."""
    before: Counter[tuple[str, ...]] = Counter()
    for row in old.rows if old else ():
        for depth in range(4):
            before[_path(row)[:depth]] += row.size
    kernels: dict[tuple[str, str], list[KernelRow]] = {}
    for kernel in sizes.kernels:
        kernels.setdefault((kernel.library, kernel.code), []).append(kernel)
    top = _Node(_short(sizes.name))
    places: dict[tuple[str, ...], _Node] = {(): top}
    for row in sizes.rows:
        path = _path(row)
        for depth in range(1, 4):
            if path[:depth] not in places:
                colour = colours.get(row.code) or colours.get(HOST, "host")
                places[path[:depth]] = node = _Node(path[depth - 1], colour=colour if depth == 3 else "")
                places[path[: depth - 1]].children.append(node)
        for depth in range(4):
            places[path[:depth]].size += row.size
        if row.kind in (ByteClass.GPU, ByteClass.HOST) and not places[path].children:
            found = kernels.get((row.file, row.code if row.kind is ByteClass.GPU else HOST_FUNCTIONS), [])
            places[path].children += _kernel_nodes(found, row.size, places[path].colour)
    if old:
        for place, node in places.items():
            node.old = before[place]
    _tidy(top, top.size * _SMALL)
    return top if len(top.children) != 1 else top.children[0]


def _path(row: SizeRow) -> tuple[str, str, str]:
    """Package, file and what of it; of the thousands of files without machine code, their class before the file."""
    package, file = row.package or "(no package)", unversioned(row.file)
    if row.kind in PLAIN_FILES:
        return (package, row.kind.value, file)
    return (package, file, row.code or row.kind.value)


def _kernel_nodes(kernels: Iterable[KernelRow], stored: int, colour: str) -> Iterable[_Node]:
    """Kernels share what their code takes as it is stored, by their size unpacked."""
    rows = list(kernels)
    unpacked = sum(row.size for row in rows) or 1
    for row in rows:
        yield _Node(row.name, stored * row.size // unpacked, colour=colour)


def _tidy(node: _Node, small: float) -> None:
    """The largest first, and what cannot be seen together; a colour for each, that of its largest part."""
    node.children.sort(key=lambda child: -child.size)
    rest = [child for child in node.children if child.size < small]
    if len(rest) > 1:
        node.children = [child for child in node.children if child.size >= small]
        size = sum(child.size for child in rest)
        node.children.append(_Node(f"{len(rest)} smaller", size, colour=rest[0].colour))
    for child in node.children:
        _tidy(child, small)
        if not child.colour:
            child.colour = max(_colours(child).items(), key=lambda pair: pair[1], default=("host", 0))[0]


def _colours(node: _Node) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for child in node.children:
        sizes[child.colour] += child.size
    return sizes


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name
