"""What the pages have in common: their assets, cards, and the JSON that they embed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from torchtailor.core.documents import json_text, plain
from torchtailor.core.format import human_bytes

_LONG = 14  # letters that a telephone has room for in the first column of a table
_JOINT = re.compile(r"(?<=::)|(?<=[a-z0-9][_./-])(?=\w)|(?<=[a-z])(?=[A-Z])")


def resource(name: str) -> str:
    """The text of an asset."""
    return files("torchtailor.verification.report").joinpath("assets", name).read_text("utf-8")


def whole_page(
    body: str, *, title: str, document: Mapping[str, Any], scripts: Sequence[str] = (), **values: str
) -> str:
    """A page that needs no other file: an asset with its values, styles, scripts, and the JSON it was made from."""
    return Template(resource("frame.html")).substitute(
        title=escape(title),
        style=resource("style.css"),
        script="\n".join(map(resource, ("script.js", *scripts))),
        body=Template(resource(body)).substitute(values),
        data=embedded(document),
    )


def embedded(document: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it is in."""
    return json_text(plain(document)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def encoded(page: str) -> bytes:
    """The bytes of a page; those of a file name that are not UTF-8 are spelt out."""
    return page.encode("utf-8", "backslashreplace")


def table(heads: Sequence[str], rows: Iterable[str], *, name: str = "", foot: str = "", above: str = "") -> str:
    """A table that scrolls by itself; one with a name is of numbers. `above` and `foot` are more rows of cells."""
    marks = f' class="numbers" id="{name}"' if name else ""
    head = "".join(f"<th scope=col>{escape(text)}</th>" for text in heads)
    over = f"<tr>{above}</tr>" if above else ""
    under = f"<tfoot><tr>{foot}</tr></tfoot>" if foot else ""
    body = f"<thead>{over}<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>{under}"
    return f"<div class=scroll tabindex=0><table{marks}>{body}</table></div>"


def section(title: str, body: str) -> str:
    """A part of a page under its own heading."""
    return f'<section aria-label="{escape(title)}"><h2>{escape(title)}</h2>{body}</section>'


def breakable(text: str) -> str:
    """A long name, which may go on in the next line where its words end."""
    return "<wbr>".join(map(escape, _JOINT.split(text))) if len(text) > _LONG else escape(text)


def size_cell(size: int) -> str:
    """A size for readers, with its exact value for scripts."""
    return f'<td data-bytes="{size}">{human_bytes(size)}</td>'


def legend(names: Iterable[tuple[str, str]]) -> str:
    """What the colours stand for, each with its class."""
    lines = (f'<li><span class="swatch {colour}"></span>{escape(name)}</li>' for colour, name in names)
    return f'<ul class="legend">{"".join(lines)}</ul>'


def command_line(line: str) -> str:
    """A command that can be copied."""
    return f'<div class="command"><pre><code>{escape(line)}</code></pre><button type="button">Copy</button></div>'


def card(name: str, value: str, note: str, key: str, number: int) -> str:
    """One figure, with its exact value for scripts."""
    return (
        f'<div class="card" data-figure="{key}" data-value="{number}"><h3>{escape(name)}</h3>'
        f"<p class=big>{escape(value)}</p><p class=note>{escape(note)}</p></div>"
    )
