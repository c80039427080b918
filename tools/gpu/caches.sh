#!/usr/bin/env bash
# Seconds to the first result of a program with torch.compile: stock without and with its caches, and a cut with baked
# ones. Run in the repository root of a GPU machine, with WORK, OUT and PYTHONPATH as workload.py needs them.
set -euo pipefail

program=tools/gpu/programs/flex.py
tailor() { python3 -m torchtailor "$@" 2>&1 | tail -3; }

environment() { # Python with the site-packages of a tree
    python3 -c "import sys; sys.path.insert(0, 'tools/gpu'); import workload; workload.interpreter('$1')"
}

start() { # TREE HOME: as a user with this home, whose Python writes bytecode
    mkdir -p "$2/tmp"
    env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE HOME="$2" TMPDIR="$2/tmp" BEGAN="$(date +%s.%N)" \
        "$WORK/$1/bin/python" "$program" 2>>"$OUT/errors.txt"
}

python3 tools/gpu/workload.py stock
environment stock
echo "stock, Python compiles its modules" && start stock "$WORK/home0"
echo "stock, no caches" && start stock "$WORK/home1" && start stock "$WORK/home2"
echo "stock, its own caches" && start stock "$WORK/home2" && start stock "$WORK/home2"

mkdir -p "$WORK/home3/tmp"
HOME="$WORK/home3" TMPDIR="$WORK/home3/tmp" BEGAN="$(date +%s.%N)" tailor record -o "$WORK/flex.trace" \
    --caches "$WORK/caches" -- env -u PYTHONPATH "$WORK/stock/bin/python" "$program"
cp -a "$WORK/stock/lib" "$WORK/lib" && mkdir "$WORK/cut" && mv "$WORK/lib" "$WORK/cut/lib"
rm -f "$WORK/cut/lib/python3.12/site-packages/zz-machine.pth"
tailor tailor --env "$WORK/cut/lib/python3.12/site-packages" --gpu 9.0 --nvidia --strip --workload "$WORK/flex.trace" \
    --host-pages all --bake-caches "$WORK/caches"
environment cut
echo "cut, Python compiles its modules" && start cut "$WORK/home4"
echo "cut, baked caches, first start of a user" && start cut "$WORK/home5" && start cut "$WORK/home6"
echo "cut, baked caches, later" && start cut "$WORK/home6" && start cut "$WORK/home6"
