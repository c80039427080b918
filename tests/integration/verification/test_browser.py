"""The report in a real browser: it renders, its figures are those of the JSON, and nothing is logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.verification.test_report import EVIL, library, report
from torchtailor.core.documents import plain
from torchtailor.core.format import human_bytes
from torchtailor.verification.output import as_document
from torchtailor.verification.report import write_report
from torchtailor.verification.report.chart import chart
from torchtailor.verification.result import HOST, Check, Level

pytestmark = pytest.mark.xdist_group("site")  # one browser for all


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "report.html"
    write_report(report(), path)
    size = browser.get_window_size()
    browser.set_window_size(1200, 1600)
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    yield browser
    browser.set_window_size(size["width"], size["height"])


def ask(browser: Any, script: str) -> Any:
    return browser.execute_script(script)


def test_nothing_is_logged(page: Any) -> None:
    assert page.get_log("browser") == []


def test_nothing_is_fetched_but_the_page(page: Any) -> None:
    sent = [json.loads(row["message"])["message"] for row in page.get_log("performance")]
    requests = [row["params"] for row in sent if row["method"] == "Network.requestWillBeSent"]
    # The browser's own start page may still be loading when the log begins.
    urls = {request["request"]["url"] for request in requests if not request["documentURL"].startswith("chrome")}
    assert urls
    assert {url.split(":", 1)[0] for url in urls} <= {"file", "data"}


def test_the_embedded_data_is_the_json(page: Any) -> None:
    embedded = ask(page, "return JSON.parse(document.getElementById('data').textContent)")
    assert embedded == json.loads(json.dumps(plain(as_document(report()))))


def test_bars_are_drawn_and_their_lengths_are_the_bytes(page: Any) -> None:
    drawn = ask(
        page,
        """return [...document.querySelectorAll('[data-library="torch/lib/libtorch_cuda.so"] rect')].map(
            r => [r.dataset.when, r.dataset.label, Number(r.dataset.bytes), r.getBoundingClientRect().width])""",
    )
    facts = as_document(report()).facts
    row = next(row for row in facts["libraries"] if row["name"].endswith("libtorch_cuda.so"))
    assert {label: size for when, label, size, _ in drawn if when == "before"} == row["before"]["bytes"]
    assert {label: size for when, label, size, _ in drawn if when == "after"} == row["bytes"]
    scales = [width / size for _, _, size, width in drawn]
    assert min(scales) > 0
    assert max(scales) / min(scales) == pytest.approx(1, rel=0.02)


def test_cards_say_the_figures(page: Any) -> None:
    drawn = chart(report().facts)
    text = ask(page, "return document.querySelector('.cards').innerText")
    assert drawn.before is not None
    for size in (649_000_000, 1_720_000_000, drawn.now.total, drawn.before.total, drawn.now.gpu, drawn.before.gpu):
        assert human_bytes(size) in text


def test_table_has_the_same_numbers(page: Any) -> None:
    cells = ask(
        page,
        """return [...document.querySelectorAll('#sizes tbody tr')].map(
            r => [r.dataset.library, r.dataset.when, Number(r.lastElementChild.dataset.bytes)])""",
    )
    rows = {(row.name, "after"): row.now.total for row in chart(report().facts).rows}
    assert {(name, when): size for name, when, size in cells if when == "after"} == rows


def test_filter_shows_only_what_was_asked(page: Any) -> None:
    page.find_element("css selector", '[data-show="fail"]').click()
    shown = ask(page, "return [...document.querySelectorAll('.proof li')].filter(l => l.offsetParent).length")
    assert shown == 1
    page.find_element("css selector", '[data-show=""]').click()
    assert ask(page, "return [...document.querySelectorAll('.proof li')].filter(l => l.offsetParent).length") == 3


def test_light_and_dark(page: Any) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = ask(page, paper)
    page.find_element("id", "theme").click()
    assert ask(page, paper) != before


def test_names_are_text(page: Any) -> None:
    assert ask(page, "return document.images.length") == 0
    assert EVIL in ask(page, "return document.querySelector('.failures').textContent")


def test_text_is_readable_on_its_background(page: Any) -> None:
    """Contrast of 4.5 or more (WCAG AA) for text and for the words that tell outcomes, in light and dark."""
    script = """
      const lum = c => { const v = c.match(/\\d+/g).slice(0, 3).map(x => { x /= 255;
        return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; });
        return .2126*v[0] + .7152*v[1] + .0722*v[2]; };
      const paper = lum(getComputedStyle(document.body).backgroundColor);
      return ['body', '.summary', '.pass .outcome', '.fail .outcome', '.not-applicable .outcome', '.proof p'].map(s => {
        const ink = lum(getComputedStyle(document.querySelector(s)).color);
        return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05); });"""
    for theme in ("light", "dark"):
        ask(page, f"document.documentElement.dataset.theme = '{theme}'")
        assert min(ask(page, script)) >= 4.5, theme


def test_narrow_screens_do_not_overflow(page: Any) -> None:
    page.set_window_size(500, 900)
    try:
        assert ask(page, "return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        page.set_window_size(1200, 1600)


@pytest.mark.parametrize("width", [400, 1400])
def test_bars_and_text_fit_any_screen(browser: Any, tmp_path: Path, width: int) -> None:
    """On a telephone nothing is cut off or has to be scrolled: bars scale, and their figures stay on the page."""
    path = tmp_path / "wide.html"
    names = ["nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", "torch/lib/libtorch_cuda.so"]
    sizes = ({HOST: 5_000_000}, {HOST: 1_000_000_000, "sm_90": 500_000_000})
    libraries = [library(name, now, {**now, "sm_80": 900_000_000}) for name, now in zip(names, sizes, strict=True)]
    write_report(report(libraries=libraries), path)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.get(path.as_uri())
        assert ask(browser, "return window.innerWidth") == width
        assert ask(browser, "return document.documentElement.scrollWidth <= window.innerWidth")
        script = "return [...document.querySelectorAll('svg text, svg rect')].filter(e => e.getClientRects().length)"
        rights = ask(browser, f"{script}.map(e => e.getBoundingClientRect().right)")
        assert max(rights) <= width
        assert min(ask(browser, f"{script}.map(e => e.getBoundingClientRect().left)")) >= 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_many_lines_of_one_kind_are_folded(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    checks = [Check.of(Level.STATIC, f"GPU code for sm90: lib{i}.so", True, "native") for i in range(25)]
    checks += [Check.not_applicable(Level.STATIC, f"host code unattributed: lib{i}.so", "x") for i in range(9)]
    checks += [Check.of(Level.STATIC, f"coverage: lib{i}.so", False, "missing") for i in range(5)]
    write_report(replace(report(), checks=tuple(checks)), path)
    browser.get(path.as_uri())
    shown = "return [...document.querySelectorAll('.proof li')].filter(l => l.checkVisibility()).length"
    assert ask(browser, shown) == 7
    browser.find_element("css selector", ".fold summary").click()
    assert ask(browser, shown) == 7 + 25
    browser.find_element("css selector", '[data-show="not-applicable"]').click()
    assert ask(browser, shown) == 1


def test_what_does_not_apply_is_grey(page: Any) -> None:
    ask(page, "document.documentElement.dataset.theme = 'light'")
    colour = ask(page, "return getComputedStyle(document.querySelector('.not-applicable .outcome')).color")
    channels = [int(number) for number in colour[4:-1].split(",")]
    assert max(channels) - min(channels) < 30


def test_long_names_are_not_clipped(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    names = ["nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", "w" * 60 + ".so", "WM_" * 20]
    write_report(report(libraries=[library(name, {HOST: 5}) for name in names], stock=None), path)
    browser.get(path.as_uri())
    lefts = ask(browser, "return [...document.querySelectorAll('svg text.name')].map(t => t.getBBox().x)")
    assert len(lefts) == 4
    assert min(lefts) >= 0


def test_a_page_of_almost_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.html"
    write_report(report(libraries=[library("a.so", {HOST: 5})], stock=None, wheels=[], install=[]), path)
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert ask(browser, "return document.querySelectorAll('rect').length") == 2
