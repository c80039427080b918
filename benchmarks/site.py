"""Sizes of the site's pages, and the processor time that the selector takes to be drawn and to answer, in Chromium.

    .venv/bin/python benchmarks/site.py [--rounds 9]

Prints the tables of benchmarks/site.md. Times are those of the page's main thread (Chromium's `TaskDuration` in thread
ticks) in the least disturbed round; an empty page is loaded in each round as the other side. A
slow laptop is taken as four times slower than the machine that measures, as Chromium's developer tools do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchtailor.catalog import load_catalog
from torchtailor.site.pages import LIMIT, render_site, site_sizes, write_site

ROOT = Path(__file__).resolve().parent.parent
DRAWN_LIMIT = 100.0  # ms on a slow laptop, beyond what the browser itself takes for an empty page
SLOWER = 4
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
EMPTY = "<!DOCTYPE html><title>empty</title><p>empty</p>"
READY = "return document.readyState === 'complete' && !document.querySelector('#answer:not([data-ready=yes])')"


def browser(profile: str) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    return driver


def milliseconds(driver: Any, path: Path) -> float:
    """Processor time of the main thread until the page is ready; each navigation gets a new process and a new clock."""
    driver.get("about:blank")
    driver.get(path.as_uri())
    while not driver.execute_script(READY):
        time.sleep(0.02)
    time.sleep(0.2)
    return _task(driver)


def _task(driver: Any) -> float:
    rows = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(row["value"] for row in rows if row["name"] == "TaskDuration"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    pages = render_site(load_catalog(ROOT / "src"))
    sizes = site_sizes(pages)
    print("| page | kB | kB with gzip | limit |\n|---|---:|---:|---:|")
    for page in sizes:
        limit = f"{LIMIT / 1000:.0f}" if page.name == "index.html" else ""
        print(f"| {page.name} | {page.size / 1000:.0f} | {page.gzip / 1000:.0f} | {limit} |")
    with tempfile.TemporaryDirectory() as folder:
        write_site(Path(folder), pages)
        Path(folder, "empty.html").write_text(EMPTY)
        silent = pages["index.html"].replace(b'addEventListener("DOMContentLoaded"', b'addEventListener("never"')
        Path(folder, "drawn.html").write_bytes(silent.replace(b'id="answer"', b'id="answer" data-ready="yes"'))
        driver = browser(f"{folder}/profile")
        names = ("empty.html", "drawn.html", "index.html")
        rows = [[milliseconds(driver, Path(folder, name)) for name in names] for _ in range(rounds)]
        driver.quit()
    empty, drawn, answered = (min(column) for column in zip(*rows, strict=True))
    print("\n| | here, ms | four times slower, ms | limit |\n|---|---:|---:|---:|")
    print(f"| an empty page | {empty:.0f} | {SLOWER * empty:.0f} | |")
    print(f"| the selector, drawn | {drawn:.0f} | {SLOWER * drawn:.0f} | |")
    own = drawn - empty
    print(f"| ... beyond the empty page | {own:.0f} | {SLOWER * own:.0f} | {DRAWN_LIMIT:.0f} |")
    print(f"| the selector with its first answer | {answered:.0f} | {SLOWER * answered:.0f} | |")
    return 0 if sizes[0].gzip <= LIMIT and SLOWER * own <= DRAWN_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
