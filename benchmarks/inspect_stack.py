"""`torchtailor inspect` of an unpacked stack against `cp -r` of the same tree, side by side: at most 0.25x.

Run: .venv/bin/python benchmarks/inspect_stack.py TREE [--copy-to FOLDER]

FOLDER must be on the same disk, with space for a copy. Both run with the tree in the page cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 0.25


def measure(command: list[str]) -> tuple[float, float]:
    """Wall-clock seconds and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elapsed = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def warm(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        for name in names:
            with Path(folder, name).open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--copy-to", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    inspect = [str(Path(sys.executable).with_name("torchtailor")), "inspect", str(options.tree), "--gpu", "9.0"]
    rows = []
    for _ in range(options.rounds):
        copy = Path(tempfile.mkdtemp(dir=options.copy_to))
        warm(options.tree)
        rows.append(measure(["cp", "-r", str(options.tree), str(copy / "copy")]))
        shutil.rmtree(copy)
        warm(options.tree)
        rows.append(measure(inspect))
    copied, inspected = rows[0::2], rows[1::2]
    ratio = statistics.median(b[0] / a[0] for a, b in zip(copied, inspected, strict=True))
    print("| what | seconds | processor seconds |\n|---|---|---|")
    for name, results in (("cp -r", copied), ("torchtailor inspect", inspected)):
        print(f"| {name} | {min(r[0] for r in results):.2f} | {min(r[1] for r in results):.2f} |")
    print(f"\nratio {ratio:.2f} (median of {options.rounds}; limit {LIMIT}); {os.cpu_count()} cores", end="; ")
    print(f"load {os.getloadavg()[0]:.1f}")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
