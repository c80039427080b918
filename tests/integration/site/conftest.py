"""A browser, and the site as it is written for the catalog of the recorded machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import machines
from torchtailor.site.pages import render_site, write_site

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1400,1200",
)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these on one worker, so that the site is made once."""
    folder = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.xdist_group("site"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_script_timeout(300)
    yield driver
    driver.quit()


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
