"""Tests with real tools use the index that the user has configured, and one browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import link_settings

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


@pytest.fixture(autouse=True)
def configured_index(home: Path) -> None:
    link_settings()


@pytest.fixture
def shared_cache(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torchtailor's cache, with the wheels that other tests have downloaded."""
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(downloads / "torchtailor"))
    return downloads / "torchtailor"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests of a worker: those that use it share the group `site`."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options, Service(driver))
    running.set_script_timeout(300)
    yield running
    running.quit()
