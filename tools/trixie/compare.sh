#!/bin/sh
# Compares the wheel that build.sh made with the official one of the same version, on this CPU: every case of
# benchmarks/cpu_ops.py in turn, in two environments of the system that setup.sh created. Ten minutes on an idle machine.
#
#   sudo tools/trixie/compare.sh FOLDER WHEELHOUSE [options of benchmarks/cpu_builds.py ...] > compare.json
#   sudo tools/trixie/compare.sh FOLDER --noise VERSION [options ...]       the official wheel against itself
#
# WHEELHOUSE is one of FOLDER/work/dist. `benchmarks/cpu_builds.py --read compare.json` prints the tables. `sudo
# CAPABILITY=avx2 tools/trixie/compare.sh ...` limits the kernels of the second environment to that instruction set.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
usage="usage: $0 FOLDER WHEELHOUSE [options], or $0 FOLDER --noise VERSION [options]"
root=${1:?"$usage"}
what=${2:?"$usage"}
shift 2
name=trixie
. "$here/../debian.sh"
need_root

# An environment with a torch and NumPy, once: environment NAME OPTIONS
environment() {
    place=/opt/$1
    shift
    [ ! -e "$root$place/.ready" ] || return 0
    rm -rf "$root$place"
    enter python3 -m venv "$place"
    enter "$place/bin/pip" install -q --no-compile numpy >&2
    enter "$place/bin/pip" install -q --no-compile --timeout 300 "$@" >&2
    touch "$root$place/.ready"
}

own=official
if [ "$what" = --noise ]; then
    version=${1:?"$usage"}
    shift
else
    house=$(cd "$what" && pwd)
    inside=${house#"$(cd "$root" && pwd)"/}
    [ "$inside" != "$house" ] || fail "$what is not in $root: give one of $root/work/dist"
    wheel=$(find "$what" -name 'torch-*.whl' | head -n 1)
    [ -n "$wheel" ] || fail "there is no wheel of torch in $what"
    label=$(basename "$wheel" | cut -d- -f2)
    version=${label%%+*}
    # By its content: the same variant may be built again.
    own=own-$(sha256sum "$wheel" | cut -c1-12)
    environment "$own" --index-url "file:///$inside/simple" "torch==$label"
fi
environment "official-$version" "torch==$version"
[ "$own" != official ] || own=official-$version

mkdir -p "$root/torchtailor/benchmarks"
cp "$here/../../benchmarks/cpu_builds.py" "$here/../../benchmarks/cpu_ops.py" "$root/torchtailor/benchmarks/"
second=/opt/$own/bin/python
if [ -n "${CAPABILITY:-}" ]; then
    second=/opt/$own/bin/python-$CAPABILITY
    printf '#!/bin/sh\nATEN_CPU_CAPABILITY=%s exec /opt/%s/bin/python "$@"\n' "$CAPABILITY" "$own" > "$root$second"
    chmod +x "$root$second"
fi
enter /opt/torchtailor/bin/python /torchtailor/benchmarks/cpu_builds.py "/opt/official-$version/bin/python" "$second" --json "$@"
