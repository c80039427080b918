"""Writes docs/report.png: the top of the report of the verification on an H200, as a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torchtailor.report import write_report
from torchtailor.verification.output import from_json

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "results" / "h200" / "verify-tailored.json"
PICTURE = ROOT / "docs" / "report.png"
SIZE = "1000,760"


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("error: no chromium is installed\n       On Debian: apt-get install chromium.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        write_report(from_json(MEASURED.read_bytes()), page)
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}")
        line = [browser, *flags, f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(line, check=True, capture_output=True, timeout=60)
    print(f"wrote {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
