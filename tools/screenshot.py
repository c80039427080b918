"""Writes the pictures of the documents, as a browser shows them: the report of an H200, and the selector."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from torchtailor.catalog import load_catalog
from torchtailor.site.pages import render_site, write_site
from torchtailor.verification.output import read_report
from torchtailor.verification.report import write_report

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "results" / "h200" / "verify-tailored.json"
PICTURES = ROOT / "docs"
SHOWN = ".venv"  # as a reader would name the environment; it was measured in a temporary folder
REPORT_SIZE = (1000, 760)
SELECTOR_SIZES = {"selector.png": (1400, 1060), "selector-narrow.png": (400, 1100)}
READY = "return !document.querySelector('#answer:not([data-ready=yes])')"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
STATE = "gpu=RTX%204090&driver=570.26&cpu=Ryzen%209%207950X"


def main() -> int:
    browser, chromedriver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        print("error: no chromium is installed\n       On Debian: apt-get install chromium-driver.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        write_report(replace(read_report(MEASURED.read_bytes()), target=SHOWN), page)
        write_site(Path(folder, "site"), render_site(load_catalog(ROOT / "src")))
        selector = f"{Path(folder, 'site', 'index.html').as_uri()}#{STATE}"
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, Service(chromedriver))
        try:
            take(driver, page.as_uri(), "report.png", REPORT_SIZE)
            for name, size in SELECTOR_SIZES.items():
                take(driver, selector, name, size)
        finally:
            driver.quit()
    return 0


def take(driver: webdriver.Chrome, address: str, name: str, size: tuple[int, int]) -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")
    driver.get(address)
    WebDriverWait(driver, 60).until(lambda one: one.execute_script(READY))
    picture = PICTURES / name
    driver.save_screenshot(str(picture))
    print(f"wrote {picture.relative_to(ROOT)}, {picture.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
