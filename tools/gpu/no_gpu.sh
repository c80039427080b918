#!/usr/bin/env bash
# `tailor --gpu none` of the torch in python3's site-packages: its CPU op suite against that of the stock one. Takes four
# minutes. Run in the repository root, after pack.sh has created .carry/py312. Results go to $OUT (default: build/gpu),
# working copies to $WORK.
#
#   tools/gpu/no_gpu.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

export OUT=${OUT:-$PWD/build/gpu} WORK=${WORK:-/tmp/torchtailor-prove}
mkdir -p "$OUT" "$WORK"
site=$(python3 -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])')
tool() { PYTHONPATH="$PWD/src:$PWD/.carry/py312" python3 "$@"; }

# What the cut torch still needs comes from the same place; torch's other requirements are only metadata there.
needs=(filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec setuptools numpy nvidia-cuda-runtime)
[ -d "$WORK/small" ] || tool tools/gpu/rewheel.py "$site" "$WORK/small" "${needs[@]}"
[ -d "$WORK/torch" ] || tool tools/gpu/rewheel.py "$site" "$WORK/torch" torch
tool -m torchtailor tailor "$WORK"/torch/torch-[0-9]*.whl --gpu none -o "$WORK/nogpu"
python3 -m venv --clear "$WORK/env"
"$WORK/env/bin/python" -m pip install -q --no-index --no-deps "$WORK"/nogpu/torch-*.whl "$WORK"/small/*.whl

"$WORK/env/bin/python" src/torchtailor/opsuite/suite.py --device cpu --quiet --out "$OUT/nogpu.json" &
python3 src/torchtailor/opsuite/suite.py --device cpu --quiet --out "$OUT/stock.json"
wait $!
python3 - << 'PYTHON'
import json, os
stock, cut = (json.load(open(f"{os.environ['OUT']}/{name}.json")) for name in ("stock", "nogpu"))
print("stock", stock["counts"], "cut", cut["counts"])
for case in (*stock["cases"], *cut["cases"]):
    case.pop("seconds", None)
ran = [pair for pair in zip(stock["cases"], cut["cases"], strict=True) if pair[0]["outcome"] == "pass"]
print(sum(a == b for a, b in ran), "of", len(ran), "cases give the same bytes; not", [a["name"] for a, b in ran if a != b])
PYTHON
