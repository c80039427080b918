"""Builds eight GPUs x two Pythons of a release without a farm and on `--on local:2`, and compares time and bytes.

    python benchmarks/farm_local.py [--release 2.15] [--rounds 2] [--work DIR] [--write]

The wheels are fetched first (about 4 GB; with --work, once); then each side starts with the same cache of stock wheels
and nothing cut, in turn. The ratio is of the best times, and of the CPU time of all processes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GPUS = "75,80,86,89,90,100,103,120"
CUDA = "13_2"
TABLE = Path(__file__).with_suffix(".md")
WORKERS = 2


@dataclass(frozen=True)
class Run:
    """One build."""

    seconds: float
    cpu: float


def torchtailor(words: list[str], cache: Path, state: Path) -> Run:
    environment = os.environ | {"TORCHTAILOR_CACHE": str(cache), "TORCHTAILOR_STATE": str(state)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "torchtailor", *words, "--quiet"], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(time.monotonic() - began, cpu)


def only_stock(full: Path, target: Path) -> None:
    """A cache with the stock wheels and what plans read, as links."""
    for name in ("blobs", "facts", "pages"):
        shutil.copytree(full / name, target / name, copy_function=os.link)


def tree(folder: Path) -> dict[str, str]:
    """The hash of each file; those of many wheelhouses are links to one, which is read once."""
    hashes: dict[int, str] = {}
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            inode = path.stat().st_ino
            if inode not in hashes:
                with path.open("rb") as file:
                    hashes[inode] = hashlib.file_digest(file, "sha256").hexdigest()
            found[str(path.relative_to(folder))] = hashes[inode]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", default="2.15")
    parser.add_argument("--pythons", default="3.12,3.13")
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        root = Path(folder)
        tag = "pytorch" + given.release.replace(".", "")
        names = [
            f"{tag}-python{python.replace('.', '')}-cuda{CUDA}-sm{gpu}-avx2"
            for python in given.pythons.split(",")
            for gpu in given.gpus.split(",")
        ]
        words = ["build", *names, "--release", given.release]
        full = (given.work or root) / "full"
        fetched = full / "fetched"  # for which names
        if not fetched.is_file() or fetched.read_text("utf-8") != str(words):
            torchtailor([*words, "-o", str(root / "first")], full, root / "state")
            shutil.rmtree(root / "first")
            fetched.write_text(str(words), "utf-8")
        runs: dict[str, list[Run]] = {"one process": [], f"local:{WORKERS}": []}
        trees = {}
        for _ in range(given.rounds):
            for side, found in runs.items():
                place = root / "run"
                only_stock(full, place / "cache")
                farm = ["--on", side, "--store", str(place / "store")] if side.startswith("local") else []
                found.append(torchtailor([*words, *farm, "-o", str(place / "dist")], place / "cache", root / "state"))
                trees[side] = tree(place / "dist")
                print(side, found[-1], flush=True)
                shutil.rmtree(place)
        assert len({str(one) for one in trees.values()}) == 1, "the bytes differ"
        text = report(runs, given.release, len(trees[f"local:{WORKERS}"]))
    print(text)
    if given.write:
        TABLE.write_text(text, "utf-8")


def report(runs: dict[str, list[Run]], release: str, files: int) -> str:
    (_, plain), (name, farm) = runs.items()
    best = [min(run.seconds for run in side) for side in (plain, farm)]
    cpu = [min(run.cpu for run in side) for side in (plain, farm)]
    cores = len(os.sched_getaffinity(0))
    return (
        f"PyTorch {release}, eight GPUs x two Pythons, stock wheels in the cache, nothing cut; {cores} cores, best of "
        f"{len(plain)} runs each, in turn. All {files} files have the same bytes.\n\n"
        "| | time | CPU time |\n|---|---:|---:|\n"
        f"| one process | {best[0]:.1f} s | {cpu[0]:.1f} s |\n| {name} | {best[1]:.1f} s | {cpu[1]:.1f} s |\n"
        f"| ratio | {best[1] / best[0]:.2f} x (at most 1.1) | {cpu[1] / cpu[0]:.2f} x |\n\n"
        "    python benchmarks/farm_local.py --write\n"
    )


if __name__ == "__main__":
    main()
