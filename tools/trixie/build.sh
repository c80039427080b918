#!/bin/sh
# Compiles Debian's pytorch source in the system that setup.sh has made; some two and a quarter hours on two cores with
# --no-ccache.
#
#   sudo tools/trixie/build.sh FOLDER [ISA or VARIANT] [further options of torchtailor build ...]
#
# ISA is armv8_2 on ARM and avx2 on x86 unless named, and stands for the variant without a GPU. It may be stopped at any
# time: the same command goes on. Wheel, manifest and index end in FOLDER/work/dist, logs and the ledger in
# FOLDER/work/state.
set -eu

root=${1:?"usage: $0 FOLDER [ISA or VARIANT] [options]"}
shift
case ${1:-} in
    ''|-*) case $(uname -m) in aarch64) variant=cpu-armv8_2 ;; *) variant=cpu-avx2 ;; esac ;;
    *-*) variant=$1; shift ;;
    *) variant=cpu-$1; shift ;;
esac
[ "$(id -u)" = 0 ] || { echo "trixie: this needs root"; exit 1; }
mkdir -p "$root/work"
# Only who mounts takes it away again: another build may be running here.
mounted=
trap 'for place in $mounted; do umount -l "$place"; done' EXIT
for kind in proc sysfs; do
    place=$root/${kind%fs}
    mountpoint -q "$place" || { mount -t "$kind" "$kind" "$place" && mounted="$mounted $place"; }
done

# USE_SYSTEM_LIBS: Debian's packages stand for the submodules. Its source is of another version than the newest
# release, and its wheel's name follows the source.
chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
    TORCHTAILOR_STATE=/work/state TORCHTAILOR_CACHE=/work/cache \
    /opt/torchtailor/bin/torchtailor build "$variant" --via source --source /src/pytorch --python 3.13 \
    --profile minimal --set USE_SYSTEM_LIBS=ON --set BLAS=OpenBLAS -o /work/dist "$@"
