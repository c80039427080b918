#!/bin/sh
# Compiles c10, a small part of PyTorch (1 GB), for two instruction sets in the system that setup.sh created, and counts
# instructions; takes minutes on two cores.
#
#   sudo tools/trixie/c10.sh FOLDER [ISA ISA] > counts.tsv
#
# One line per ISA: its name and the numbers of count.sh.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${1:?"usage: $0 FOLDER [ISA ISA]"}
shift
case $#:$(uname -m) in
    0:aarch64) set -- armv8_2 armv9 ;;
    0:*) set -- avx avx512 ;;
esac

printf 'isa\tinstructions\tymm\tzmm\tsve\tlse\toutline\n'
for isa in "$@"; do
    answer=$("$here/build.sh" "$root" "$isa" --target c10 --skip-check disk --json)
    build=$(printf '%s\n' "$answer" | sed -n 's/.*"build": "\(.*\)".*/\1/p')
    printf '%s\t' "$isa"
    "$here/count.sh" "$root$build/src/build/lib/libc10.so"
done
