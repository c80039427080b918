#!/usr/bin/env bash
# How long `tailor` takes against `cp`, side by side on this machine: of the torch in python3's site-packages with the
# NVIDIA packages beside it, and of wheels if a folder of them is given: $ROUNDS rounds (default: 7) with the input in the
# page cache and as many without, wheels also on two of the cores. Takes a few minutes. Run in the repository root, after
# pack.sh has created .carry/py312. Results go to $OUT (default: build/gpu), working copies to $WORK.
#
#   tools/gpu/speed.sh [WHEELS]
#   tools/gpu/speed.sh --rewheel        with wheels made of what is installed there
set -uo pipefail
cd "$(dirname "$0")/../.."

export ROUNDS=${ROUNDS:-7} OUT=${OUT:-$PWD/build/gpu} WORK=${WORK:-/tmp/torchtailor-prove}
export PYTHONPATH="$PWD/src:$PWD/.carry/py312${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT" "$WORK"
python3 -m compileall -q src .carry/py312 > /dev/null 2>&1 || true # as an installer does: else every start compiles everything
site=$(python3 -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])')
if [ "${1:-}" = --rewheel ]; then
    [ -d "$WORK/deflated" ] || python3 tools/gpu/rewheel.py "$site" "$WORK/deflated" torch triton nvidia-
    set -- "$WORK/deflated"
fi
if [ ! -d "$WORK/stock" ]; then
    mkdir "$WORK/stock"
    for name in torch nvidia triton; do
        [ -d "$site/$name" ] && cp -rL "$site/$name" "$WORK/stock/"
    done
fi
{
    python3 - << 'PYTHON'
import os, subprocess, sys, time

print(f"{os.cpu_count()} cores; Python {sys.version.split()[0]}")
for words in ([sys.executable, "-c", "pass"], [sys.executable, "-c", "import torchtailor.tailoring.inputs"]):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(words, check=True)
        times.append(time.perf_counter() - start)
    print(f"start of {words[-1]!r}: {min(times):.2f} s")
PYTHON
    python3 - "$WORK" << 'PYTHON'
import sys, tempfile, time
from pathlib import Path

from torchtailor.surgery.library import tailor_library
from torchtailor.tailoring.choices import cut_for

# what everything waits for: the slowest libraries, one after the other
options = cut_for("9.0", nvidia=True, strip=True)
work = Path(sys.argv[1])
libraries = sorted(work.glob("stock/**/*.so*"), key=lambda path: -path.stat().st_size)
with tempfile.TemporaryDirectory(dir=work) as out:
    for library in [path for path in libraries if not path.is_symlink()][:8]:
        start, first, every = time.perf_counter(), time.thread_time(), time.process_time()
        result = tailor_library(library, Path(out) / "out.so", options)
        spent = (time.perf_counter() - start, time.thread_time() - first, time.process_time() - every)
        print(f"{library.name}: {result.size_before / 1e6:.0f} -> {result.size_after / 1e6:.0f} MB, "
              "{:.2f} s, {:.2f} of the first thread, {:.2f} of all".format(*spent))
PYTHON
    python3 tools/gpu/phases.py "$WORK/stock" "$WORK/phases"
    for state in --more --cold; do
        python3 benchmarks/tailor_stack.py "$WORK/stock" --gpu 9.0 --rounds "$ROUNDS" --copy-to "$WORK" $state
    done
    taskset -c 0,1 python3 benchmarks/tailor_stack.py "$WORK/stock" --gpu 9.0 --rounds 3 --copy-to "$WORK" --more
    if [ $# -gt 0 ]; then
        python3 benchmarks/tailor_wheels.py "$1" --gpu 9.0 --rounds "$ROUNDS" --copy-to "$WORK"
        taskset -c 0,1 python3 benchmarks/tailor_wheels.py "$1" --gpu 9.0 --rounds 3 --copy-to "$WORK"
    fi
} 2>&1 | tee "$OUT/speed.txt"
