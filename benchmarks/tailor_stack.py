"""`torchtailor tailor` of an unpacked stack against `cp -r` of the same tree, side by side, and the sizes.

Run: .venv/bin/python benchmarks/tailor_stack.py TREE --gpu 9.0 [--recompress [--zstd-level 19]] [--rounds 3]
     [--copy-to DIR] [--cold] [--more]

TREE is a folder of unpacked wheels (torch and the NVIDIA packages it depends on); it is only read. DIR must be on the
same disk, with space for a copy. Both run with the tree in the page cache, or with --cold without it; what was written
before is on the disk by then, and they take turns at being first. If another benchmark follows, --leave what was
written (see `empty`). Limits: without recompression 1.5 times `cp -r` and 400 MB of memory (proportional share of all
processes together); with it, once the images are in the cache, 2 times `cp -r`. --more measures in the same rounds: the
cut for 8 GPUs, `inspect` of the tree, and `verify --level static` of the result, which may fail where TREE is only a
part of what its RECORDs list.
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
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

EIGHT = "7.5,8.0,8.6,8.9,9.0,10.0,12.0,12.1"
TIME_LIMIT, CACHED_LIMIT, MEMORY_LIMIT = 1.5, 2.0, 400e6
# packages without GPU code, which the size limits do not include
HOST_ONLY = ("cuda_nvrtc", "nvjitlink", "cuda_cupti", "cuda_runtime", "nvtx", "cufile")


@dataclass(frozen=True)
class Run:
    """One command: wall-clock time, CPU time, and the peak memory of all its processes together."""

    seconds: float
    user: float
    system: float
    memory: int

    @property
    def processor(self) -> float:
        return self.user + self.system


def run(command: list[str], codes: Collection[int] = (0,)) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    code = process.wait()
    elapsed = time.perf_counter() - start
    watcher.join()
    if code not in codes:
        raise SystemExit(f"{command} ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(elapsed, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, peak[0])


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_share, _family(process.pid))))
        time.sleep(0.05)


def _family(pid: int) -> list[int]:
    family, queue = [], [pid]
    while queue:
        parent = queue.pop()
        family.append(parent)
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                queue += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended in the meantime
    return family


def _share(pid: int) -> int:
    """The proportional share of memory of one process, in bytes."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def warm(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        for name in names:
            with Path(folder, name).open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def evict(tree: Path) -> None:
    """Take the tree out of the page cache; needs no permission, as its files are clean."""
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def settle(tree: Path, *, cold: bool) -> None:
    """The same state before each run: nothing left to write, the input in the page cache or not."""
    os.sync()
    (evict if cold else warm)(tree)


def processor() -> str:
    """What decides the speed of hashing: the cores, the model, and whether it has instructions for SHA."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    sha = "with" if {"sha_ni", "sha2"} & set(flags) else "without"
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {sha} instructions for SHA"


def empty(tree: Path) -> None:
    """Give back what the files of an output take. They are not removed before the end: while many files were removed in
    the last minute, ext4 without a journal takes several times as long for each new one, and more with each process."""
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)


def libraries(tree: Path) -> dict[Path, int]:
    found = {}
    for path in tree.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            found[path.relative_to(tree)] = path.stat().st_size
    return found


def print_sizes(before: dict[Path, int], after: dict[Path, int]) -> None:
    print("\n| library | stock MB | tailored MB | left |\n|---|---|---|---|")
    for path, size in sorted(before.items(), key=lambda item: -item[1])[:20]:
        print(f"| {path.name} | {size / 1e6:.1f} | {after[path] / 1e6:.1f} | {after[path] / size:.1%} |")
    with_code = {path for path in before if not set(path.parts) & set(HOST_ONLY)}
    for name, chosen in (("all libraries", set(before)), ("without packages that have no GPU code", with_code)):
        old, new = sum(before[path] for path in chosen), sum(after[path] for path in chosen)
        print(f"| **{name}** ({len(chosen)}) | {old / 1e6:.1f} | {new / 1e6:.1f} | **{new / old:.1%}** |")


def describe(copied: Run, cut: Run) -> str:
    """One round in a line."""
    seconds = f"{cut.seconds:.2f} s of tailor against {copied.seconds:.2f} s of cp"
    return (
        f"{cut.seconds / copied.seconds:.2f} x: {seconds}; processor {cut.processor:.1f} and {copied.processor:.1f} s"
    )


def print_runs(measured: dict[str, list[Run]]) -> None:
    print("| median of what | seconds | user | system | memory MB (peak) |\n|---|---|---|---|---|")
    for name, runs in measured.items():
        values = [statistics.median(getattr(one, what) for one in runs) for what in ("seconds", "user", "system")]
        peak = max(one.memory for one in runs) / 1e6
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} | {peak:.0f} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--recompress", action="store_true")
    parser.add_argument("--zstd-level", default="19", help="of recompression; a lower one fills the cache sooner")
    parser.add_argument("--copy-to", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="read the tree from the disk each time")
    parser.add_argument("--more", action="store_true", help="also for 8 GPUs, `inspect` and `verify --level static`")
    parser.add_argument("--leave", action="store_true", help="leave the empty files of all outputs behind")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    work = Path(tempfile.mkdtemp(dir=options.copy_to))
    program = [sys.executable, "-m", "torchtailor"]
    rest = ["--nvidia", "--strip"]
    if options.recompress:
        rest += ["--recompress", "--zstd-level", options.zstd_level]
    tailor = [*program, "tailor", str(options.tree), *rest]
    copied, cut = [], []
    more: dict[str, list[Run]] = {}
    try:
        for round_ in range(options.rounds + options.recompress):  # with recompression, the first one fills the cache
            copy, tailored, eight = (work / f"{what}{round_}" for what in ("copy", "tailored", "eight"))
            others = {
                "torchtailor inspect": [*program, "inspect", str(options.tree)],
                "torchtailor tailor for 8 GPUs": [*tailor, "--gpu", EIGHT, "-o", str(eight)],
            }
            for copying in (True, False) if round_ % 2 == 0 else (False, True):
                settle(options.tree, cold=options.cold)
                if copying:
                    copied.append(run(["cp", "-r", str(options.tree), str(copy)]))
                    empty(copy)
                else:
                    cut.append(run([*tailor, "--gpu", options.gpu, "-o", str(tailored)]))
                    after = libraries(tailored)
                    if options.more:
                        verify = [*program, "verify", str(tailored), "--level", "static"]
                        more.setdefault("torchtailor verify --level static", []).append(run(verify, (0, 6)))
                    empty(tailored)
            for name, command in others.items() if options.more else ():
                settle(options.tree, cold=options.cold)
                more.setdefault(name, []).append(run(command))
                empty(eight)
            print(f"round {round_}: {describe(copied[-1], cut[-1])}", file=sys.stderr)
    finally:
        if not options.leave:
            shutil.rmtree(work, ignore_errors=True)
    if options.recompress:
        print(f"first recompression: {cut[0].seconds:.0f} s, {cut[0].memory / 1e6:.0f} MB of memory")
        copied, cut = copied[1:], cut[1:]
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(copied, cut, strict=True))
    memory = max(one.memory for one in cut)
    print_runs({"cp -r": copied, "torchtailor tailor": cut, **more})
    limit = CACHED_LIMIT if options.recompress else TIME_LIMIT
    state = "cold" if options.cold else "warm"
    print(f"\nratio {ratio:.2f} ({state}, median of {options.rounds}; limit {limit}); {processor()}; ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    print_sizes(libraries(options.tree), after)
    return ratio > limit or (not options.recompress and memory > MEMORY_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
