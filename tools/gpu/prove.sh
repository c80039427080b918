#!/usr/bin/env bash
# Verifies a tailored PyTorch on the GPU of this machine: cuts a copy of the torch in python3's site-packages, runs the op
# suite on stock (twice) and on the cuts, compares bit for bit, measures. Run in the repository root, after pack.sh has
# created .carry/py312. Results go to $OUT (default: build/gpu); working copies to $WORK (/tmp/torchtailor-prove).
#
#   tools/gpu/prove.sh              everything
#   tools/gpu/prove.sh stage1      prepare, wrong target, op suite, comparison
#   tools/gpu/prove.sh stage2      prepare, measurements
#   tools/gpu/prove.sh stage3      prepare, `torchtailor verify` at all levels (twenty minutes)
#   tools/gpu/prove.sh prepare wrong suite compare measure verify report       any combination of these
#
# A failing stage is recorded and the next one runs; results of an earlier call in $WORK are reused.
set -uo pipefail
cd "$(dirname "$0")/../.."

export OUT=${OUT:-$PWD/build/gpu} WORK=${WORK:-/tmp/torchtailor-prove}
export PYTHONPATH="$PWD/src:$PWD/.carry/py312" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$OUT" "$WORK"
set -o pipefail
python3 tools/gpu/prove.py "$@" 2>&1 | tee "$OUT/log.txt"
