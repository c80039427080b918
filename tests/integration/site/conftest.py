"""The site as it is written for the catalog of the recorded machines, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import machines
from torchtailor.site.pages import render_site, write_site


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these on one worker, so that the site is made once."""
    folder = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.xdist_group("site"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_site(folder, render_site(machines.catalog()))
    return folder


def open_page(browser: Any, path: Path, hash_: str = "") -> None:
    """Load a page afresh, and wait until it has answered."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get("about:blank")
    browser.get(path.as_uri() + (f"#{hash_}" if hash_ else ""))
    ready = "return !document.getElementById('answer') || document.getElementById('answer').dataset.ready === 'yes'"
    WebDriverWait(browser, 30).until(lambda one: one.execute_script(ready))


@pytest.fixture
def selector(browser: Any, site: Path) -> Any:
    browser.get_log("performance")
    browser.get_log("browser")
    open_page(browser, site / "index.html")
    return browser
