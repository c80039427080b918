#!/bin/sh
# Compiles c10, a small part of PyTorch (1 GB), for two instruction sets in the system that setup.sh has made, and counts what
# the compiler made of it; some minutes on two cores.
#
#   sudo tools/trixie/c10.sh FOLDER [ISA ISA] > counts.tsv
#
# A line for each: ISA, instructions, those with 256-bit and 512-bit registers (x86), with SVE registers (ARM), inline
# atomics (ARM's LSE), and calls of the helpers that stand for them where the instruction set has none.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${1:?"usage: $0 FOLDER [ISA ISA]"}
shift
case $#:$(uname -m) in
    0:aarch64) set -- armv8_2 armv9 ;;
    0:*) set -- avx avx512 ;;
esac

count() { grep -cE "$1" "$listing" || true; }

listing=$(mktemp)
trap 'rm -f "$listing"' EXIT
printf 'isa\tinstructions\tymm\tzmm\tsve\tlse\toutline\n'
for isa in "$@"; do
    answer=$("$here/build.sh" "$root" "$isa" --target c10 --skip-check disk --json)
    build=$(printf '%s\n' "$answer" | sed -n 's/.*"build": "\(.*\)".*/\1/p')
    objdump -d --no-show-raw-insn "$root$build/src/build/lib/libc10.so" > "$listing"
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$isa" "$(count '^ +[0-9a-f]+:')" "$(count '%ymm')" "$(count '%zmm')" \
        "$(count '[[:space:]]z[0-9]+\.')" "$(count '[[:space:]](ldadd|ldclr|ldset|ldeor|swp|cas)[a-z]*[[:space:]]')" \
        "$(count '__aarch64_(ldadd|ldclr|ldset|ldeor|swp|cas)')"
done
