#!/usr/bin/env bash
# How long `tailor`, `inspect` and `verify` take against `cp`, and `--recompress` against zstd, side by side on this
# machine: with the torch in python3's site-packages and the NVIDIA packages beside it, and with wheels of the same. With
# the input in the page cache; on all cores in $ROUNDS rounds (default: 3, seven minutes in all on 16 cores), on two in
# one less. Run in the repository root, after pack.sh has created .carry/py312. Results go to $OUT (default: build/gpu),
# working copies to $WORK.
#
#   tools/gpu/speed.sh [PART...]
#
# The parts, all by default: phases folder two wheels wheels-two recompress; and, only if it is named, cold: the folder
# read from the disk.
set -uo pipefail
cd "$(dirname "$0")/../.."

export ROUNDS=${ROUNDS:-3} LEVEL=${LEVEL:-19} OUT=${OUT:-$PWD/build/gpu} WORK=${WORK:-/tmp/torchtailor-prove}
export PYTHONPATH="$PWD/src:$PWD/.carry/py312${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT" "$WORK"
python3 -m compileall -q src .carry/py312 > /dev/null 2>&1 || true # as an installer does: else every start compiles everything
site=${SITE:-$(python3 -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])')}
[ $# -gt 0 ] || set -- phases folder two wheels wheels-two recompress
if [ ! -d "$WORK/stock" ]; then
    mkdir "$WORK/stock"
    cp -rL --preserve=timestamps "$site"/{torch,triton,nvidia}{,[-_]*.dist-info} "$WORK/stock/" 2> /dev/null
fi
has_wheels() {
    [ -d "$WORK/deflated" ] || python3 tools/gpu/rewheel.py "$site" "$WORK/deflated" torch triton nvidia-
}
cut="--gpu 9.0 --copy-to $WORK --rounds $ROUNDS"
slow="--gpu 9.0 --copy-to $WORK --rounds $((ROUNDS > 1 ? ROUNDS - 1 : 1))"
for part in "$@"; do
    echo "== $part, $(date +%T)"
    case $part in
        phases)
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
            python3 tools/gpu/phases.py "$WORK/stock" "$WORK/phases"
            ;;
        folder) python3 benchmarks/tailor_stack.py "$WORK/stock" $cut --more --leave ;;
        cold) python3 benchmarks/tailor_stack.py "$WORK/stock" $cut --cold ;;
        two) taskset -c 0,1 python3 benchmarks/tailor_stack.py "$WORK/stock" $slow --more --leave ;;
        wheels) has_wheels && python3 benchmarks/tailor_wheels.py "$WORK/deflated" $cut ;;
        wheels-two) has_wheels && taskset -c 0,1 python3 benchmarks/tailor_wheels.py "$WORK/deflated" $slow ;;
        recompress) python3 benchmarks/recompress.py "$WORK/stock" $cut --zstd-level "$LEVEL" ;;
        *) echo "there is no part $part" >&2 ;;
    esac
done 2>&1 | tee "$OUT/speed.txt"
