"""`import torch` from an index of modules against stock: file calls, slow storage, and a warm local disk.

Run: .venv/bin/python benchmarks/module_index.py STOCK CUT [--import torch] [--delay 1000] [--rounds 5]

STOCK and CUT are the Pythons of two environments with the same packages; CUT was cut with --index-modules and a trace
of the import. File calls are counted by strace: what opens files or asks about them, by path or open. On a network's
storage every question by path is a round trip: a preloaded library adds a delay to each, but for those of the dynamic
linker. The limits are those of docs/module-index.md.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SLOW_LIMIT, WARM_LIMIT = 5.0, 1.0
CALLS = re.compile(r"^(?:\d+ +)?(?:open|openat|stat|lstat|fstat|newfstatat|statx|access|faccessat2?|readlink)\(", re.M)
SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void delay(void) {
    static int microseconds;
    if (!microseconds) microseconds = atoi(getenv("FILE_DELAY"));
    usleep(microseconds);
}
#define STOCK(name) static __typeof__(name) *stock; delay(); \
    if (!stock) stock = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define MODE int mode; va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest)
int open(const char *path, int flags, ...) { MODE; STOCK(open); return stock(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; STOCK(open64); return stock(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE; STOCK(openat); return stock(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE; STOCK(openat64); return stock(at, path, flags, mode); }
int stat(const char *path, struct stat *to) { STOCK(stat); return stock(path, to); }
int stat64(const char *path, struct stat64 *to) { STOCK(stat64); return stock(path, to); }
int lstat(const char *path, struct stat *to) { STOCK(lstat); return stock(path, to); }
int lstat64(const char *path, struct stat64 *to) { STOCK(lstat64); return stock(path, to); }
int fstatat(int at, const char *path, struct stat *to, int flags) { STOCK(fstatat); return stock(at, path, to, flags); }
int fstatat64(int at, const char *path, struct stat64 *to, int flags) {
    STOCK(fstatat64);
    return stock(at, path, to, flags);
}
int access(const char *path, int mode) { STOCK(access); return stock(path, mode); }
ssize_t readlink(const char *path, char *to, size_t size) { STOCK(readlink); return stock(path, to, size); }
DIR *opendir(const char *path) { STOCK(opendir); return stock(path); }
"""


def seconds(python: Path, program: str, **variables: str) -> float:
    start = time.perf_counter()
    subprocess.run([python, "-c", program], check=True, env={**os.environ, **variables})
    return time.perf_counter() - start


def processor_seconds(python: Path, program: str) -> float:
    """On a warm local disk nothing is waited for, and other load does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def file_calls(python: Path, program: str, folder: Path) -> int:
    trace = folder / "calls"
    subprocess.run(["strace", "-f", "-o", trace, "-e", "trace=%file,%desc", python, "-c", program], check=True)
    return len(CALLS.findall(trace.read_text(errors="replace")))


def shim(folder: Path) -> Path:
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return folder / "shim.so"


def in_turn(run: Callable[[Path], float], pythons: tuple[Path, Path], rounds: int) -> tuple[float, float, float]:
    """The medians of both, and the median of the ratios of stock to cut."""
    pairs = [tuple(run(python) for python in pythons) for _ in range(rounds)]
    stock, cut = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
    return stock, cut, statistics.median(pair[0] / pair[1] for pair in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stock", type=Path)
    parser.add_argument("cut", type=Path)
    parser.add_argument("--import", dest="module", default="torch")
    parser.add_argument("--delay", type=int, default=1000, help="microseconds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pythons, program = (options.stock.absolute(), options.cut.absolute()), f"import {options.module}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for python in pythons * 2:  # into the page cache
            seconds(python, program)
        calls = [file_calls(python, program, folder) for python in pythons]
        own = file_calls(pythons[0], "pass", folder)
        added = {"LD_PRELOAD": str(shim(folder)), "FILE_DELAY": str(options.delay)}
        slow = in_turn(lambda python: seconds(python, program, **added), pythons, max(options.rounds // 2, 1))
        warm = in_turn(lambda python: processor_seconds(python, program), pythons, options.rounds)
    rows = [
        (f"file calls ({own} without a module)", *(f"{count:,}" for count in calls), calls[0] / calls[1]),
        (f"seconds, {options.delay / 1000:g} ms more for each", *(f"{one:.1f}" for one in slow[:2]), slow[2]),
        ("processor seconds, warm, on a local disk", *(f"{one:.2f}" for one in warm[:2]), warm[2]),
    ]
    print(f"| `{program}` | stock | from the index | ratio |\n|---|---|---|---|")
    for what, stock, cut, ratio in rows:
        print(f"| {what} | {stock} | {cut} | {ratio:.2f} |")
    print(f"\nmedians of runs in turn; load {os.getloadavg()[0]:.1f}")
    return slow[2] < SLOW_LIMIT or warm[2] < WARM_LIMIT


if __name__ == "__main__":
    sys.exit(main())
