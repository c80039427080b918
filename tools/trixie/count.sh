#!/bin/sh
# Counts instructions in libraries with objdump: one line of tab-separated numbers per library.
#
#   tools/trixie/count.sh LIBRARY ...
#
# Instructions, those with 256-bit and 512-bit registers (x86), with SVE registers (ARM), inline atomics (ARM's LSE), and
# calls of the helpers that replace them if the instruction set has none.
set -eu

for library in "$@"; do
    objdump -d --no-show-raw-insn "$library" | awk -F '\t' -v OFS='\t' '
        /^ +[0-9a-f]+:/ {
            all++
            if (/%ymm/) ymm++
            if (/%zmm/) zmm++
            if ($3 ~ /(^|[^a-z0-9])z[0-9]+\./) sve++
            if ($2 ~ /^(ldadd|ldclr|ldset|ldeor|swp|cas)[a-z]*$/) lse++
            if (/<__aarch64_(ldadd|ldclr|ldset|ldeor|swp|cas)/) outline++
        }
        END { print all + 0, ymm + 0, zmm + 0, sve + 0, lse + 0, outline + 0 }'
done
