"""Writes the site: the selector, the matrix and the guides, each one file that needs no other and no network."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from torchtailor.catalog.load import Catalog, load_catalog
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants import Matrix, matrix_of
from torchtailor.catalog.variants.why import explain
from torchtailor.core.disk import write_output
from torchtailor.core.version import __version__
from torchtailor.site.answers import page_answer
from torchtailor.site.choices import EXAMPLE, SELECTS, SUGGESTED, Option, form_choices
from torchtailor.site.compiler import Program, compile_program
from torchtailor.site.paste import browser_gpu, understand
from torchtailor.site.tables import (
    MATRIX_COLUMNS,
    Cell,
    MatrixEntry,
    SiteTable,
    core_table,
    distinct,
    gpu_table,
    isa_table,
    matrix_entries,
)

SELECTOR, MATRIX, GPUS, CPUS = "index.html", "matrix.html", "gpus.html", "cpus.html"
_LINKS = {SELECTOR: "Selector", MATRIX: "Matrix", GPUS: "GPUs", CPUS: "CPUs"}
LIMIT = 300_000  # bytes of the selector, packed with gzip


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page that was written: its name, its size, and its size as servers send it."""

    name: str
    size: int
    gzip: int


@dataclass(frozen=True, slots=True)
class SiteDocument:
    """The site as it was written, or in a dry run would be."""

    out: Path
    dry_run: bool
    pages: tuple[SitePage, ...]


def render_site(catalog: Catalog | None = None) -> dict[str, bytes]:
    """All pages, by name."""
    matrix = matrix_of(catalog or load_catalog())
    pages = {
        SELECTOR: selector_page(matrix),
        MATRIX: matrix_page(matrix),
        GPUS: guide_page(GPUS, "GPUs", "Every compute capability with its products, drivers and CUDA versions.",
                         [("", gpu_table(matrix.catalog))]),
        CPUS: guide_page(CPUS, "CPUs", "The instruction sets that variants are compiled for, and which CPUs run them.",
                         [("Instruction sets", isa_table(matrix.catalog)), ("Cores", core_table(matrix.catalog))]),
    }  # fmt: skip
    return {name: text.encode() for name, text in pages.items()}


def write_site(out: Path, pages: Mapping[str, bytes]) -> None:
    """Write pages into a folder; each is whole or as it was before."""
    for name, content in pages.items():
        write_output(out / name, content)


def site_sizes(pages: Mapping[str, bytes]) -> tuple[SitePage, ...]:
    return tuple(SitePage(name, len(text), len(gzip.compress(text, mtime=0))) for name, text in pages.items())


def compile_engine(catalog: Catalog) -> Program:
    """The functions that the selector calls, and the catalog they read."""
    return compile_program(
        {"page_answer": page_answer, "understand": understand, "browser_gpu": browser_gpu, "Matrix": Matrix},
        {"catalog": catalog},
    )


def selector_page(matrix: Matrix) -> str:
    choices = form_choices(matrix.catalog)
    first = {"example": EXAMPLE, "answer": dataclasses.asdict(page_answer(matrix, {"gpus": [EXAMPLE]}))}
    return Template(_asset("selector.html")).substitute(
        {f"{name}s": _options(choices[f"{name}s"]) for name in SELECTS},
        style=_asset("base.css") + _asset("selector.css"),
        header=header(SELECTOR),
        variants=f"{sum(1 for _ in matrix.variants()):,}",
        count=len(matrix.catalog.releases),
        version=escape(__version__),
        checked=escape(matrix.catalog.checked),
        first=_json(first),
        script=_script("common.js", "selector.js"),
        engine=_packed(compile_engine(matrix.catalog), {name: choices[name] for name in SUGGESTED}),
    )


def matrix_page(matrix: Matrix) -> str:
    program = compile_program({"explain": explain, "Matrix": Matrix}, {"catalog": matrix.catalog})
    entries = matrix_entries(matrix)
    pythons = sorted({python for entry in entries for python in entry.pythons}, key=python_key, reverse=True)
    filters = {
        "release": ("PyTorch", distinct(entries, "release")),
        "cuda": ("CUDA", distinct(entries, "cuda")),
        "gpu": ("GPU", _gpus_in_order(entries)),
        "isa": ("CPU", distinct(entries, "isa")),
        "python": ("Python", tuple(pythons)),
    }
    return Template(_asset("matrix.html")).substitute(
        style=_asset("base.css") + _asset("tables.css") + _labels("#table", MATRIX_COLUMNS),
        header=header(MATRIX),
        filters="".join(_filter(key, label, values) for key, (label, values) in filters.items()),
        count=f"{len(entries):,}",
        head=_head(MATRIX_COLUMNS),
        rows="\n".join(map(_matrix_row, entries)),
        version=escape(__version__),
        checked=escape(matrix.catalog.checked),
        script=_script("common.js", "tables.js", "matrix.js"),
        engine=_packed(program),
    )


def guide_page(name: str, title: str, lead: str, tables: Sequence[tuple[str, SiteTable]]) -> str:
    shown = "".join(
        _table(f"table-{number}", heading or title, table, heading=bool(heading))
        for number, (heading, table) in enumerate(tables)
    )
    labels = "".join(_labels(f"#table-{number}", table.columns) for number, (_, table) in enumerate(tables))
    return Template(_asset("guide.html")).substitute(
        style=_asset("base.css") + _asset("tables.css") + labels,
        header=header(name),
        title=escape(title),
        lead=escape(lead),
        tables=shown,
        version=escape(__version__),
        script=_script("common.js", "tables.js"),
    )


def header(current: str) -> str:
    links = "".join(
        f'<a href="{name}"{" aria-current=page" if name == current else ""}>{label}</a>'
        for name, label in _LINKS.items()
    )
    return Template(_asset("header.html")).substitute(home=SELECTOR, links=links)


def _script(*names: str) -> str:
    return _inside("\n".join(map(_asset, names)))


def _packed(program: Program, lists: Mapping[str, Any] | None = None) -> str:
    """Code, data and lists as text that the browser unpacks when it needs them: reading them at once takes 7 ms."""
    whole = "\0".join((program.code, program.data, _json(lists or {})))
    return base64.b64encode(zlib.compress(whole.encode(), 9)).decode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _options(rows: Sequence[Option]) -> str:
    return "".join(f'<option value="{escape(row["key"])}">{escape(row["label"])}</option>' for row in rows)


def _inside(code: str) -> str:
    """Code that cannot end the script element it is in."""
    return code.replace("</", "<\\/")


def _asset(name: str) -> str:
    return files("torchtailor.site").joinpath("assets", name).read_text("utf-8")


def _gpus_in_order(entries: Iterable[MatrixEntry]) -> tuple[str, ...]:
    return tuple(
        sorted({entry.gpu for entry in entries}, key=lambda sm: int(sm[2:]) if sm != "cpu" else 0, reverse=True)
    )


def _filter(key: str, label: str, values: Sequence[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return (
        f'<div class="field"><label for="{key}">{label}</label>'
        f'<select id="{key}"><option value="">all</option>{options}</select></div>'
    )


def _head(columns: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in columns)
    return f"<tr>{cells}</tr>"


def _cell(cell: Cell) -> str:
    key = f' data-key="{escape(cell.key)}"' if cell.key else ""
    text = escape(cell.text)
    return f"<td{key}>{f'<code>{text}</code>' if cell.code and text else text}</td>"


def _matrix_row(entry: MatrixEntry) -> str:
    keys = f"{entry.release} {entry.cuda} {entry.gpu} {entry.isa}"
    pythons = " ".join(entry.pythons)
    return f'<tr data-k="{escape(keys)}" data-p="{escape(pythons)}">{"".join(map(_cell, entry.cells))}</tr>'


def _labels(table: str, columns: Sequence[str]) -> str:
    """On a narrow screen a row is a card: each cell says what its column is."""
    rules = "".join(
        f'{table} td:nth-child({number})::before{{content:"{name}"}}' for number, name in enumerate(columns, 1)
    )
    return f"@media (max-width: 640px) {{{rules}}}"


def _table(name: str, title: str, table: SiteTable, *, heading: bool) -> str:
    shown = f"<h2>{escape(title)}</h2>" if heading else ""
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return (
        f'{shown}<div class="scroll" id="{name}" role="region" aria-label="{escape(title)}" tabindex="0"><table>'
        f"<thead>{_head(table.columns)}</thead><tbody>{rows}</tbody></table></div>"
    )
