#!/bin/sh
# Creates a bare Debian system with nothing but Python in a folder: `torchtailor verify WHEELHOUSE --root FOLDER` proves
# there that a wheel brings all libraries that it needs.
#
#   sudo tools/bare.sh FOLDER [SUITE] [--dry-run]
#
# SUITE is this machine's own Debian release unless it is given; its Python must be that of the wheel. Needs root,
# debootstrap, 250 MB of disk and two minutes. Packages come from the mirror that this machine's own apt uses; on another
# distribution, set MIRROR and name a SUITE.
set -eu

root=${1:?"usage: $0 FOLDER [SUITE] [--dry-run]"}
shift
suite=
dry=
for word in "$@"; do
    case $word in --dry-run) dry=1 ;; *) suite=$word ;; esac
done

name=bare
. "$(dirname "$0")/debian.sh"

[ -n "$suite" ] || suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$suite" ] || fail "name a SUITE: this system has no codename"
find_mirror
[ ! -e "$root/.bare" ] || { say "$root is there already"; exit 0; }

bootstrap "$suite" --include=python3
run touch "$root/.bare"
say "$root is a bare $suite"
