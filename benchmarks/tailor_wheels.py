"""`torchtailor tailor` of a folder of wheels against `cp` of the same files, side by side, and the sizes.

Run: .venv/bin/python benchmarks/tailor_wheels.py WHEELS --gpu 9.0 [--rounds 3] [--copy-to DIR]

WHEELS is a folder of wheels; it is only read. DIR must be on the same disk, with space for a copy. Both run with
the wheels in the page cache. The limit is 5 times `cp`. Half of what is left is SHA-256: of each wheel, of every file
in it against RECORD, and of what is written; so the ratio depends on whether the processor has instructions for it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tailor_stack import run, warm

LIMIT = 5.0


def sha256_speed() -> float:
    """Megabytes a second on one core."""
    data = bytes(32 << 20)
    start = time.process_time()
    hashlib.sha256(data).digest()
    return len(data) / 1e6 / (time.process_time() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--copy-to", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    wheels = sorted(map(str, options.wheels.glob("*.whl")))
    work = Path(tempfile.mkdtemp(dir=options.copy_to))
    tailor = [sys.executable, "-m", "torchtailor", "tailor", *wheels, "--gpu", options.gpu]
    tailor += ["--nvidia", "-o", str(work / "tailored")]
    copied, cut = [], []
    try:
        for round_ in range(options.rounds):
            warm(options.wheels)
            (work / "copy").mkdir()
            copied.append(run(["cp", *wheels, str(work / "copy")]))
            shutil.rmtree(work / "copy")
            warm(options.wheels)
            cut.append(run(tailor))
            after = sum(path.stat().st_size for path in (work / "tailored").glob("*.whl"))
            shutil.rmtree(work / "tailored")
            print(f"round {round_}: {cut[-1].seconds / copied[-1].seconds:.2f} x", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    before = sum(Path(wheel).stat().st_size for wheel in wheels)
    print("| what | seconds | processor seconds | memory MB |\n|---|---|---|---|")
    for name, runs in (("cp", copied), ("torchtailor tailor", cut)):
        best = min(runs, key=lambda one: one.seconds)
        peak = max(one.memory for one in runs) / 1e6
        print(f"| {name} | {best.seconds:.2f} | {best.processor:.2f} | {peak:.0f} |")
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(copied, cut, strict=True))
    print(f"\nratio {ratio:.2f} (median of {options.rounds}; limit {LIMIT}); {len(wheels)} wheels, ", end="")
    print(f"{before / 1e6:.0f} MB before and {after / 1e6:.0f} MB after; {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}, SHA-256 at {sha256_speed():.0f} MB/s")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
