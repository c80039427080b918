"""Sizes of the site's pages, and the time that the selector takes to be drawn and to answer, in Chromium.

    .venv/bin/python benchmarks/site.py [--rounds 15]

Prints the tables of benchmarks/site.md. Processor times are those of the page's main thread (Chromium's `TaskDuration`
in thread ticks) in the least disturbed round; an empty page is loaded in each round as the other side. A slow laptop is
taken as four times slower than the machine that measures, as Chromium's developer tools do; the time until the first
paint is measured under their throttling.
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
DRAWN_LIMIT = 100.0  # ms on a slow laptop
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


def first_paint(driver: Any, path: Path) -> float:
    """From the navigation to the first text on the screen, with the processor slowed down by Chromium."""
    driver.get("about:blank")
    driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    try:
        driver.get(path.as_uri())
        painted = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        while not (found := float(driver.execute_script(painted))):
            time.sleep(0.02)
        return found
    finally:
        driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})


def _task(driver: Any) -> float:
    rows = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(row["value"] for row in rows if row["name"] == "TaskDuration"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
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
        drawn_only = pages["index.html"].replace(b"window.requestIdleCallback ??", b"(() => 0) ??")
        assert drawn_only != pages["index.html"], "the page waits for an idle browser in another way"
        Path(folder, "drawn.html").write_bytes(drawn_only.replace(b'id="answer"', b'id="answer" data-ready="yes"'))
        driver = browser(f"{folder}/profile")
        names = ("empty.html", "drawn.html", "index.html")
        rows, paints = [], []
        for _ in range(rounds):
            rows.append([milliseconds(driver, Path(folder, name)) for name in names])
            paints.append([first_paint(driver, Path(folder, name)) for name in ("empty.html", "index.html")])
        driver.quit()
    empty, drawn, started = (min(column) for column in zip(*rows, strict=True))
    painted_empty, painted = (min(column) for column in zip(*paints, strict=True))
    print("\n| processor time | here, ms | four times slower, ms |\n|---|---:|---:|")
    print(f"| an empty page | {empty:.0f} | {SLOWER * empty:.0f} |")
    print(f"| the first view: form, answer, commands | {drawn:.0f} | {SLOWER * drawn:.0f} |")
    print(f"| ... beyond the empty page | {drawn - empty:.0f} | {SLOWER * (drawn - empty):.0f} |")
    print(f"| and what waits for an idle browser: reasons, engine | {started:.0f} | {SLOWER * started:.0f} |")
    print("\n| first paint, throttled four times | ms |\n|---|---:|")
    print(f"| an empty page | {painted_empty:.0f} |\n| the selector | {painted:.0f} |")
    own = drawn - empty
    return 0 if sizes[0].gzip <= LIMIT and SLOWER * own <= DRAWN_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
