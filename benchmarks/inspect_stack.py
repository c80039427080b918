"""`torchtailor inspect` of an unpacked stack against `cp -r` of the same tree, side by side: at most 0.25x.

Run: .venv/bin/python benchmarks/inspect_stack.py TREE [--copy-to FOLDER]
     .venv/bin/python benchmarks/inspect_stack.py TREE --diff OTHER

FOLDER must be on the same disk, with space for a copy. Both run with the tree in the page cache. With --diff it is
`torchtailor diff TREE OTHER`, which reads both, against `torchtailor inspect TREE`: at most 2x.
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
DIFF_LIMIT = 2.0


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
    parser.add_argument("--diff", type=Path, metavar="OTHER")
    parser.add_argument("--copy-to", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program = str(Path(sys.executable).with_name("torchtailor"))
    trees, limit = [options.tree], LIMIT
    inspect = [program, "inspect", str(options.tree), "--gpu", "9.0"]
    if options.diff:
        trees.append(options.diff)
        limit = DIFF_LIMIT
        sides = {"torchtailor inspect": inspect[:3], "torchtailor diff": [program, "diff", *map(str, trees)]}
    else:
        sides = {"cp -r": ["cp", "-r", str(options.tree)], "torchtailor inspect": inspect}
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, command in sides.items():
            for tree in trees:
                warm(tree)
            copy = Path(tempfile.mkdtemp(dir=options.copy_to))
            rows[name].append(measure([*command, str(copy / "copy")] if command[0] == "cp" else command))
            shutil.rmtree(copy)
    first, second = rows.values()
    ratio = statistics.median(b[0] / a[0] for a, b in zip(first, second, strict=True))
    print("| what | seconds | processor seconds |\n|---|---|---|")
    for name, results in rows.items():
        print(f"| {name} | {min(r[0] for r in results):.2f} | {min(r[1] for r in results):.2f} |")
    print(f"\nratio {ratio:.2f} (median of {options.rounds}; limit {limit}); {os.cpu_count()} cores", end="; ")
    print(f"load {os.getloadavg()[0]:.1f}")
    return ratio > limit


if __name__ == "__main__":
    sys.exit(main())
