"""`torchtailor --help` against a bare `python -c pass`, side by side: at most 3x.

Run: .venv/bin/python benchmarks/cli_help.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 40
LIMIT = 3.0


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    script = Path(sys.executable).with_name("torchtailor")
    bare, full = [sys.executable, "-c", "pass"], [str(script), "--help"]
    seconds(bare), seconds(full)  # warm both
    pairs = [(seconds(bare), seconds(full)) for _ in range(ROUNDS)]
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"python -c pass      {statistics.median(a for a, _ in pairs) * 1000:6.1f} ms (median of {ROUNDS})")
    print(f"torchtailor --help  {statistics.median(b for _, b in pairs) * 1000:6.1f} ms")
    print(f"ratio               {ratio:6.2f}   (limit {LIMIT})")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
