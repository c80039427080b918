#!/bin/sh
# Counts instructions in libraries with objdump: one line of tab-separated numbers per library.
#
#   tools/trixie/count.sh LIBRARY ...
#
# Instructions, those whose widest register has 128, 256 or 512 bits (x86), with SVE registers (ARM), inline atomics
# (ARM's LSE), and calls of the helpers that replace them if the instruction set has none.
set -eu

command -v objdump >/dev/null || { echo "count: there is no objdump: apt-get install binutils" >&2; exit 1; }
code=$(mktemp)
trap 'rm -f "$code"' EXIT
for library in "$@"; do
    objdump -d --no-show-raw-insn "$library" > "$code"
    awk -F '\t' -v OFS='\t' '
        /^ +[0-9a-f]+:/ {
            all++
            if (/%zmm/) zmm++
            else if (/%ymm/) ymm++
            else if (/%xmm/) xmm++
            if ($3 ~ /(^|[^a-z0-9])z[0-9]+\./) sve++
            if ($2 ~ /^(ldadd|ldclr|ldset|ldeor|swp|cas)[a-z]*$/) lse++
            if (/<__aarch64_(ldadd|ldclr|ldset|ldeor|swp|cas)/) outline++
        }
        END { print all + 0, xmm + 0, ymm + 0, zmm + 0, sve + 0, lse + 0, outline + 0 }' "$code"
done
