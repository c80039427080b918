"""`torchtailor tailor` of a folder of wheels against `cp` of the same files, side by side, and the sizes.

Run: .venv/bin/python benchmarks/tailor_wheels.py WHEELS --gpu 9.0 [--rounds 3] [--copy-to DIR] [--cold]

WHEELS is a folder of wheels; it is only read. DIR must be on the same disk, with space for a copy. Both run with
the wheels in the page cache, or with --cold without. `tailor` waits until its wheels are on the disk, so `cp` is
followed by `sync`. The limit is 5 times that. Half of it is SHA-256: of each wheel, of every file
in it against RECORD, and of what is written; so the ratio depends on whether the processor has instructions for it.
`taskset -c 0,1` before it measures two cores of a larger machine.
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

from tailor_stack import describe, processor, run, settle

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
    parser.add_argument("--cold", action="store_true", help="read the wheels from the disk each time")
    options = parser.parse_args()
    wheels = sorted(map(str, options.wheels.glob("*.whl")))
    work = Path(tempfile.mkdtemp(dir=options.copy_to))
    tailor = [sys.executable, "-m", "torchtailor", "tailor", *wheels, "--gpu", options.gpu]
    tailor += ["--nvidia", "-o", str(work / "tailored")]
    copied, cut = [], []
    try:
        for round_ in range(options.rounds):
            for copying in (True, False) if round_ % 2 == 0 else (False, True):
                settle(options.wheels, cold=options.cold)
                if copying:
                    (work / "copy").mkdir()
                    copied.append(
                        run(["sh", "-c", 'cp "$@" && sync -f "$0"', str(work / "copy"), *wheels, str(work / "copy")])
                    )
                    shutil.rmtree(work / "copy")
                else:
                    cut.append(run(tailor))
                    after = sum(path.stat().st_size for path in (work / "tailored").glob("*.whl"))
                    shutil.rmtree(work / "tailored")
            print(f"round {round_}: {describe(copied[-1], cut[-1])}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    before = sum(Path(wheel).stat().st_size for wheel in wheels)
    print("| what | seconds | processor seconds | memory MB |\n|---|---|---|---|")
    for name, runs in (("cp and sync", copied), ("torchtailor tailor", cut)):
        best = min(runs, key=lambda one: one.seconds)
        peak = max(one.memory for one in runs) / 1e6
        print(f"| {name} | {best.seconds:.2f} | {best.processor:.2f} | {peak:.0f} |")
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(copied, cut, strict=True))
    state = "cold" if options.cold else "warm"
    print(f"\nratio {ratio:.2f} ({state}, median of {options.rounds}; limit {LIMIT}); {len(wheels)} wheels, ", end="")
    print(f"{before / 1e6:.0f} MB before and {after / 1e6:.0f} MB after; {processor()}, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}, SHA-256 at {sha256_speed():.0f} MB/s")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
