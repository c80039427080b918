"""Time and memory of reading the host code of one library: `python benchmarks/disassemble.py libtorch_cpu.so`.

Memory is the proportional set size of this process and its workers together, sampled while they run: pages of the
mapped library that they share are counted once.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from torchtailor.code.hostcode.analyse import analyse
from torchtailor.code.hostcode.image import CodeImage
from torchtailor.code.hostcode.needs import read_needs
from torchtailor.code.hostcode.reach import Reach


def family(pid: str = "self") -> list[str]:
    """This process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += family(child)
    return found


def memory() -> int:
    """Proportional set size in bytes."""
    total = 0
    for pid in family():
        try:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return total


class Peak:
    """Peak memory while a block runs."""

    def __enter__(self) -> Peak:
        self.bytes, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.bytes = max(self.bytes, memory())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    path = parser.parse_args().library
    with Peak() as peak:
        started = time.perf_counter()
        needs = read_needs(CodeImage(path))
        read = time.perf_counter() - started
        code = analyse(path, needs=needs)
        total = time.perf_counter() - started
    print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB, {code.code_bytes / 1e6:.0f} MB of code")
    print(f"{code.functions} functions, {code.arch}, {'stripped' if code.stripped else 'with symbols'}")
    print(f"instructions read in {read:.1f} s, functions placed in {total - read:.1f} s; {total:.1f} s in all")
    print(f"peak memory of all processes {peak.bytes / 1e6:.0f} MB")
    for reach in Reach:
        print(f"  {reach.value:<13} {code.count(reach):>6}  {' '.join(sorted(code.needs(reach)))}")


if __name__ == "__main__":
    main()
