"""What `record` and packs of pages cost: a program with and without them, in turn, and code that it had not used.

Run: .venv/bin/python benchmarks/host_pages.py ENV PROGRAM [--rounds 5]

ENV is a virtual environment with torch, without GPU code or cut for a GPU; PROGRAM is a Python file that runs in it.
The environment is cut to the program with `--host-pages all`, once with packs as they are and once compressed. Then a
process of each runs operations that the program does not use, twice each: what the first call takes more than the
second, and more than in the stock environment, is what came from the pack.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TORCHTAILOR = [sys.executable, "-m", "torchtailor"]
FIRST = """
import json, time, torch
torch.manual_seed(0)
x = torch.rand(24, 24) + torch.eye(24)
operations = {
    "qr": lambda: torch.linalg.qr(x), "svd": lambda: torch.linalg.svd(x), "fft": lambda: torch.fft.fft2(x),
    "conv3d": lambda: torch.conv3d(torch.rand(1, 2, 5, 5, 5), torch.rand(2, 2, 3, 3, 3)),
    "lstm": lambda: torch.nn.LSTM(8, 8)(torch.rand(3, 1, 8)), "sort": lambda: x.sort(), "unique": lambda: x.unique(),
    "multinomial": lambda: torch.multinomial(x, 3), "erfinv": lambda: torch.erfinv(x),
    "cdist": lambda: torch.cdist(x, x),
    "pool": lambda: torch.nn.functional.max_pool2d(x[None], 3), "sparse": lambda: x.to_sparse() @ x,
}
rows = {}
for name, operation in operations.items():
    times = []
    for _ in range(2):
        began = time.perf_counter()
        operation()
        times.append((time.perf_counter() - began) * 1000)
    rows[name] = times[0] - times[1]
print(json.dumps(rows))
"""


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall-clock time and processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, used


def first_calls(python: Path) -> dict[str, float]:
    done = subprocess.run([python, "-c", FIRST], check=True, capture_output=True, text=True)
    rows: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path)
    parser.add_argument("program", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    stock = options.environment.resolve()
    with tempfile.TemporaryDirectory(prefix="host-pages-") as work:
        trace = Path(work, "program.trace")
        trees = {"stock": stock, "packs": Path(work, "raw"), "compressed": Path(work, "zstd")}
        recorded = [*TORCHTAILOR, "record", "-o", str(trace), "--", str(stock / "bin/python"), str(options.program)]
        seconds(recorded)
        cut = [*TORCHTAILOR, "tailor", str(stock), "--workload", str(trace), "--host-pages", "all"]
        for tree, packing in (("packs", "none"), ("compressed", "zstd")):
            seconds([*cut, "--pack-compress", packing, "-o", str(trees[tree])])
        sides = {tree: [str(folder / "bin/python"), str(options.program)] for tree, folder in trees.items()}
        sides["record"] = recorded
        runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, command in sides.items():
                trace.unlink(missing_ok=True)
                runs[side].append(seconds(command))
        firsts = {
            tree: [first_calls(folder / "bin/python") for _ in range(options.rounds)] for tree, folder in trees.items()
        }
    print("| | wall-clock seconds | of stock | processor seconds | of stock |\n|---|---:|---:|---:|---:|")
    for side, rows in runs.items():
        ratios = [
            statistics.median(row[k] / base[k] for row, base in zip(rows, runs["stock"], strict=True)) for k in (0, 1)
        ]
        wall, used = (statistics.median(row[k] for row in rows) for k in (0, 1))
        print(f"| {side} | {wall:.2f} | {ratios[0]:.2f} | {used:.2f} | {ratios[1]:.2f} |")
    print("\n| first call more than the second, ms | stock | packs | compressed |\n|---|---:|---:|---:|")
    for name in firsts["stock"][0]:
        cells = (f"{statistics.median(row[name] for row in rows):.1f}" for rows in firsts.values())
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nmedians of {options.rounds}; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
