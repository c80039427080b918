"""Writes the pictures of the documents, as a browser shows them: the report of an H200, and the selector."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from torchtailor.catalog import load_catalog
from torchtailor.report import write_report
from torchtailor.site.pages import render_site, write_site
from torchtailor.verification.output import from_json

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "results" / "h200" / "verify-tailored.json"
PICTURES = ROOT / "docs"
SHOWN = ".venv"  # as a reader would name the environment; it was measured in a temporary folder
REPORT_SIZE = (1000, 760)
SELECTOR_SIZES = {"selector.png": (1400, 1060), "selector-narrow.png": (500, 1100)}  # no window is narrower than 500
STATE = "gpu=RTX%204090&driver=570.26&cpu=Ryzen%209%207950X"


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("error: no chromium is installed\n       On Debian: apt-get install chromium.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        measured = from_json(MEASURED.read_bytes())
        write_report(replace(measured, target=SHOWN), page)
        take(browser, folder, page.as_uri(), "report.png", REPORT_SIZE)
        write_site(Path(folder, "site"), render_site(load_catalog(ROOT / "src")))
        selector = f"{Path(folder, 'site', 'index.html').as_uri()}#{STATE}"
        for name, size in SELECTOR_SIZES.items():
            take(browser, folder, selector, name, size)
    return 0


def take(browser: str, folder: str, address: str, name: str, size: tuple[int, int]) -> None:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000")
    picture = PICTURES / name
    place = [f"--window-size={size[0]},{size[1]}", f"--user-data-dir={folder}/profile", f"--screenshot={picture}"]
    subprocess.run([browser, *flags, *place, address], check=True, capture_output=True, timeout=120)
    print(f"wrote {picture.relative_to(ROOT)}, {picture.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
