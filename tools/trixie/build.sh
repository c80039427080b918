#!/bin/sh
# Compiles Debian's pytorch source in the system that setup.sh created, with oneDNN and the best BLAS that it has: on two
# cores two hours with CXX=clang++-19 and --no-ccache, which precompiles headers; up to four with GCC.
#
#   sudo [CXX=clang++-19] tools/trixie/build.sh FOLDER [ISA or VARIANT] [further options of torchtailor build ...]
#
# ISA (default: armv8_2 on ARM, avx2 on x86) stands for the CPU-only variant. The build can be interrupted at any time:
# the same command continues. Wheel, manifest and index go to FOLDER/work/dist, logs and the ledger to
# FOLDER/work/state; WORK=/other, set like CXX, uses another folder of the system than /work.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${1:?"usage: $0 FOLDER [ISA or VARIANT] [options]"}
shift
case ${1:-} in
    ''|-*) case $(uname -m) in aarch64) variant=cpu-armv8_2 ;; *) variant=cpu-avx2 ;; esac ;;
    *-*) variant=$1; shift ;;
    *) variant=cpu-$1; shift ;;
esac
name=trixie
. "$here/../debian.sh"
need_root
# Where setup.sh could not compile SLEEF, Debian's slower one is used.
[ -e "$root/usr/local/lib/libsleef.a" ] || set -- "$@" --skip-check sleef
work=${WORK:-/work}
mkdir -p "$root$work"

# USE_SYSTEM_LIBS: Debian's packages replace the submodules; those that are switched off have none that fits. Its source
# is not the newest release, and the wheel's version follows the source.
enter ${CC:+CC="$CC"} ${CXX:+CXX="$CXX"} TORCHTAILOR_STATE="$work/state" TORCHTAILOR_CACHE="$work/cache" \
    /opt/torchtailor/bin/torchtailor build "$variant" --via source --source /src/pytorch --python 3.13 \
    --profile inference --set USE_SYSTEM_LIBS=ON --set USE_FBGEMM=0 --set USE_XNNPACK=0 --set USE_NNPACK=0 \
    --set USE_PYTORCH_QNNPACK=0 --set USE_ITT=0 --set USE_KLEIDIAI=0 -o "$work/dist" "$@"
