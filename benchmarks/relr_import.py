"""`import torch` with packed relocations against stock, in turn, in processor seconds.

Run: .venv/bin/python benchmarks/relr_import.py PYTHON STOCK PACKED [--rounds 5]

PYTHON is that of an environment with what torch depends on; STOCK and PACKED are folders with torch and the NVIDIA
packages, such as site-packages and the output of `torchtailor tailor SITE --gpu 9.0 --relr --strip -o PACKED`. The
limit is 1.05: packed relocations must not make anything slower.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 1.05


def processor_seconds(python: Path, packages: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    code = f"import torch; assert torch.__file__.startswith({str(packages)!r}); assert int(torch.ones(3).sum()) == 3"
    subprocess.run([python, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path)
    parser.add_argument("stock", type=Path)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for packages in (options.stock, options.packed):  # into the page cache
        processor_seconds(options.python, packages)
    pairs = [
        (processor_seconds(options.python, options.stock), processor_seconds(options.python, options.packed))
        for _ in range(options.rounds)
    ]
    print("| | processor seconds |\n|---|---|")
    for name, column in (("stock", 0), ("packed", 1)):
        print(f"| {name} | {min(pair[column] for pair in pairs):.2f} |")
    ratio = statistics.median(packed / stock for stock, packed in pairs)
    print(f"\nratio {ratio:.2f} (median of {options.rounds}; limit {LIMIT}); load {os.getloadavg()[0]:.1f}")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
