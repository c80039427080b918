"""axe-core finds nothing to complain about, in light and dark, on every page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.site.conftest import open_page
from torchtailor.site.published import PublishedVariant, front_page

found = find_spec("axe_core_python")
pytestmark = pytest.mark.skipif(found is None, reason="axe-core-python is not installed")
COLOURS = ["color-contrast", "link-in-text-block"]  # axe-core's rules about them


def complaints(browser: Any, *, colours_only: bool = False) -> list[str]:
    """What axe-core says, with all of its rules or those that a theme can change."""
    assert found is not None and found.origin is not None
    browser.execute_script((Path(found.origin).parent / "axe.min.js").read_text("utf-8"))
    script = """const [rules, done] = arguments;
      axe.run(document, rules ? { runOnly: { type: 'rule', values: rules } } : {})
        .then(r => done(r.violations), e => done([{ id: String(e), nodes: [] }]));"""
    rows = browser.execute_async_script(script, COLOURS if colours_only else None)
    return [f"{row['id']}: {[node['html'][:160] for node in row['nodes'][:3]]}" for row in rows]


def check_both_themes(browser: Any) -> None:
    """Themes differ in colours alone: all rules in light, those about colours in dark too."""
    for theme in ("light", "dark"):
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        assert complaints(browser, colours_only=theme == "dark") == [], theme


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("index.html", "gpu=RTX+4090&driver=570.26&cpu=zen4"),
        ("index.html", "gpu=H100&gpu=GTX+1080+Ti&driver=550.54.15&release=2.14"),
        ("index.html", "gpu=Jetson+AGX+Orin&jetpack=6.2"),
        ("index.html", "gpu=Radeon"),
        ("matrix.html", "release=2.15.0&gpu=sm90"),
        ("gpus.html", ""),
        ("cpus.html", ""),
    ],
)
def test_axe_finds_nothing(browser: Any, site: Path, name: str, state: str) -> None:
    open_page(browser, site / name, state)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    # What filters hide is seen by nobody, and thousands of such rows take axe-core long.
    browser.execute_script("document.querySelectorAll('tbody tr[hidden]').forEach(r => r.remove())")
    assert browser.execute_script("return document.querySelectorAll('tbody tr').length") > 3 or name == "index.html"
    check_both_themes(browser)


@pytest.mark.parametrize("fault", ["<img src='data:,'>", "<p style='color: #888; background: #777'>hardly seen</p>"])
def test_axe_finds_what_is_wrong(browser: Any, site: Path, fault: str) -> None:
    open_page(browser, site / "gpus.html")
    browser.execute_script("document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])", fault)
    assert complaints(browser)
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    assert bool(complaints(browser, colours_only=True)) == ("color" in fault)


def test_axe_finds_nothing_in_a_published_index(browser: Any, tmp_path: Path) -> None:
    rows = [
        PublishedVariant(
            "cu128-sm90", "v1", ("torch==2.8.0+cu128.sm90",), "3.13", "x86_64", 5, 9, "gpu", "reports/v1.html"
        ),
        PublishedVariant("cpu", "v2", ("torch==2.8.0",), "3.13", "aarch64", 5, 5, yanked="wrong"),
    ]
    (tmp_path / "index.html").write_bytes(front_page(rows, ["cpu", "cu128-sm90", "variants"]))
    open_page(browser, tmp_path / "index.html")
    check_both_themes(browser)
