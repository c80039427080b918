#!/bin/sh
# Compares the wheel that build.sh made with the official one of the same version, on this CPU: every case of
# benchmarks/cpu_ops.py in turn, in two environments of the system that setup.sh created. Ten minutes on an idle machine.
#
#   sudo tools/trixie/compare.sh FOLDER WHEELHOUSE [options of benchmarks/cpu_builds.py ...] > compare.json
#   sudo tools/trixie/compare.sh FOLDER --noise VERSION [options ...]       the official wheel against itself
#
# WHEELHOUSE is one of FOLDER/work/dist. `benchmarks/cpu_builds.py --read compare.json` prints the tables. CAPABILITY=avx2
# limits the kernels of the second environment to that instruction set.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
usage="usage: $0 FOLDER WHEELHOUSE [options], or $0 FOLDER --noise VERSION [options]"
root=${1:?"$usage"}
what=${2:?"$usage"}
shift 2
[ "$(id -u)" = 0 ] || { echo "trixie: this needs root" >&2; exit 1; }

inside() {
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} "$@"
}

# An environment with a torch and NumPy, once: environment NAME OPTIONS
environment() {
    name=$1
    shift
    [ ! -e "$root/opt/$name/.ready" ] || return 0
    rm -rf "$root/opt/$name"
    inside python3 -m venv "/opt/$name"
    inside "/opt/$name/bin/pip" install -q --no-compile numpy >&2
    inside "/opt/$name/bin/pip" install -q --no-compile "$@" >&2
    touch "$root/opt/$name/.ready"
}

own=official
if [ "$what" = --noise ]; then
    version=${1:?"$usage"}
    shift
else
    place=$(cd "$what" && pwd)
    place=${place#"$(cd "$root" && pwd)"}
    wheel=$(cd "$what" && find . -name 'torch-*.whl' | head -n 1)
    [ -n "$wheel" ] || { echo "trixie: there is no wheel of torch in $what" >&2; exit 1; }
    label=$(basename "$wheel" | cut -d- -f2)
    version=${label%%+*}
    own=own-$(basename "$place")
    environment "$own" --index-url "file://$place/simple" "torch==$label"
fi
environment "official-$version" "torch==$version"
[ "$own" != official ] || own=official-$version

mkdir -p "$root/torchtailor/benchmarks"
cp "$here/../../benchmarks/cpu_builds.py" "$here/../../benchmarks/cpu_ops.py" "$root/torchtailor/benchmarks/"
mountpoint -q "$root/proc" || { mount -t proc proc "$root/proc" && trap 'umount -l "$root/proc"' EXIT; }
second=/opt/$own/bin/python
if [ -n "${CAPABILITY:-}" ]; then
    second=/opt/$own/bin/python-$CAPABILITY
    printf '#!/bin/sh\nATEN_CPU_CAPABILITY=%s exec /opt/%s/bin/python "$@"\n' "$CAPABILITY" "$own" > "$root$second"
    chmod +x "$root$second"
fi
inside /opt/torchtailor/bin/python /torchtailor/benchmarks/cpu_builds.py "/opt/official-$version/bin/python" "$second" --json "$@"
