"""The front page of a published index: its variants, their sizes, how far they were verified, the commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from urllib.parse import quote

from torchtailor.core.format import human_bytes

_VERIFIED = {  # by the level of `torchtailor verify`
    "static": "its files",
    "import": "its files, and that it imports",
    "gpu": "its files, that it imports, and results on a GPU",
}
ADDRESS = "ADDRESS-OF-THIS-PAGE"  # the script puts the page's own address here


@dataclass(frozen=True, slots=True)
class PublishedVariant:
    """One wheelhouse of an index, as the front page shows it."""

    target: str  # the folder for pip: cu128-sm90
    variant: str
    requirements: tuple[str, ...]
    python: str
    arch: str
    size: int
    stock_size: int
    verified: str = ""  # static, import or gpu; empty where no report was published
    report: str = ""  # the path of the report in the index
    yanked: str = ""  # why its torch should not be installed any more


def front_page(variants: Sequence[PublishedVariant], targets: Sequence[str]) -> bytes:
    """The page; targets that say nothing about themselves are linked."""
    known = {variant.target for variant in variants}
    others = [target for target in sorted(targets) if target not in known]
    links = "".join(f'<li><a href="{_href(target)}/">{escape(target)}</a></li>' for target in others)
    whole = Template(_asset("published.html")).substitute(
        style=_asset("base.css") + _asset("tables.css") + _asset("published.css"),
        count=f"{len(variants)} {'variant' if len(variants) == 1 else 'variants'}",
        cards="".join(map(_card, sorted(variants, key=lambda one: (one.target, one.variant)))),
        others=f'<h2>Other folders</h2><ul class="others">{links}</ul>' if links else "",
        script=_asset("common.js") + _asset("published.js"),
    )
    return whole.encode()


def _asset(name: str) -> str:
    return files("torchtailor.site").joinpath("assets", name).read_text("utf-8")


def _href(path: str) -> str:
    return escape(quote(path))


def _card(one: PublishedVariant) -> str:
    return (
        f'<article class="card variant"><h2><code>{escape(one.variant)}</code></h2>'
        f"{_yanked(one)}<dl>{''.join(_facts(one))}</dl>{_bar(one)}{''.join(_commands(one))}</article>"
    )


def _yanked(one: PublishedVariant) -> str:
    return f'<p class="yanked">Do not install it any more: {escape(one.yanked)}</p>' if one.yanked else ""


def _facts(one: PublishedVariant) -> Iterator[str]:
    torch = escape(one.requirements[0]) if one.requirements else ""
    yield f"<div><dt>Package</dt><dd>{torch}</dd></div>"
    yield f"<div><dt>Python</dt><dd>{escape(one.python)}</dd></div>"
    yield f"<div><dt>Platform</dt><dd>Linux, {escape(one.arch)}</dd></div>"
    if one.verified:
        shown = escape(_VERIFIED.get(one.verified, one.verified))
        linked = f'<a href="{_href(one.report)}">{shown}</a>' if one.report else shown
        yield f"<div><dt>Verified</dt><dd>{linked}</dd></div>"
    else:
        yield "<div><dt>Verified</dt><dd>no report was published</dd></div>"
    yield f'<div><dt>Index</dt><dd><a href="{_href(one.target)}/">{escape(one.target)}</a></dd></div>'


def _bar(one: PublishedVariant) -> str:
    if not one.stock_size:
        return ""
    share = 100 * one.size / one.stock_size
    less = 100 - share
    words = f"{human_bytes(one.size)} to download, {human_bytes(one.stock_size)} as shipped"
    words += f": {less:.0f}\N{NO-BREAK SPACE}% less" if less >= 1 else ""
    width = min(share, 100)
    track = f'<div class="track" aria-hidden="true"><span style="width:{width:.1f}%"></span></div>'
    return f'<p class="size">{escape(words)}</p>{track}'


def _commands(one: PublishedVariant) -> Iterator[str]:
    address = f"{ADDRESS}{quote(one.target)}/"
    names = shlex.join(one.requirements)
    for tool, line in (
        ("pip", f"pip install --index-url {address} {names}"),
        ("uv", f"uv pip install --default-index {address} {names}"),
    ):
        yield (
            f'<div class="command"><pre tabindex="0" aria-label="{tool}"><code data-command="{escape(line)}">'
            f"{escape(line)}</code></pre></div>"
        )
