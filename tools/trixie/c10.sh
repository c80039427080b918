#!/bin/sh
# Compiles c10, a small part of PyTorch, and the CPU kernels of two files for several instruction sets in the system that
# setup.sh created, and counts instructions; 1 GB and a few minutes per instruction set on two cores.
#
#   sudo tools/trixie/c10.sh FOLDER [ISA ...] > counts.tsv
#
# One line per ISA and library or object: its names and the numbers of count.sh. The builds and their ledger are in
# FOLDER/counts, apart from those of PyTorch itself.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${1:?"usage: $0 FOLDER [ISA ...]"}
shift
case $#:$(uname -m) in
    0:aarch64) set -- armv8_2 armv9 ;;
    0:*) set -- avx avx2 avx512 ;;
esac
kernels="SoftMaxKernel SumKernel"
objects=caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/cpu

# The kernels are compiled once for every instruction set that PyTorch chooses from when it is loaded.
capabilities() {
    case $1 in
        avx) echo DEFAULT ;;
        avx2) echo DEFAULT AVX2 ;;
        avx512*) echo DEFAULT AVX2 AVX512 ;;
        armv9) echo DEFAULT SVE256 ;;
        *) echo DEFAULT ;;
    esac
}

printf 'isa\tfile\tinstructions\txmm\tymm\tzmm\tsve\tlse\toutline\n'
for isa in "$@"; do
    files=
    for kernel in $kernels; do
        for capability in $(capabilities "$isa"); do files="$files $kernel.cpp.$capability.cpp"; done
    done
    targets=
    for file in $files; do targets="$targets --target $objects/$file.o"; done
    # shellcheck disable=SC2086
    answer=$(WORK=/counts "$here/build.sh" "$root" "$isa" --target c10 $targets --skip-check disk --json)
    build=$root$(printf '%s\n' "$answer" | sed -n 's/.*"build": "\(.*\)".*/\1/p')/src/build
    printf '%s\tlibc10.so\t' "$isa"
    "$here/count.sh" "$build/lib/libc10.so"
    for file in $files; do
        printf '%s\t%s\t' "$isa" "$file"
        "$here/count.sh" "$build/$objects/$file.o"
    done
done
