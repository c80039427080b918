#!/bin/sh
# Creates a bare Debian system with nothing but Python in a folder: `torchtailor verify WHEELHOUSE --root FOLDER` proves
# there that a wheel brings all libraries that it needs, and tools/bare_commands.py that `make` needs little.
#
#   sudo tools/bare.sh FOLDER [SUITE] [--with PACKAGE,PACKAGE] [--dry-run]
#
# SUITE is this machine's own Debian release unless it is given; its Python must be that of the wheel. Needs root,
# debootstrap, 250 MB of disk and two minutes. Packages come from the mirror that this machine's own apt uses; on another
# distribution, set MIRROR and name a SUITE.
set -eu

root=${1:?"usage: $0 FOLDER [SUITE] [--with PACKAGE,PACKAGE] [--dry-run]"}
shift
suite=
dry=
packages=python3
while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=1 ;;
        --with) shift; packages=$packages,${1:?"--with which packages?"} ;;
        *) suite=$1 ;;
    esac
    shift
done

name=bare
. "$(dirname "$0")/debian.sh"

[ -n "$suite" ] || suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$suite" ] || fail "name a SUITE: this system has no codename"
find_mirror
if [ -e "$root/.bare" ]; then
    is=$(cat "$root/.bare")
    [ "$is" = "$suite $packages" ] || fail "$root is another system ($is): remove it, or name another folder"
    say "$root is there already"
    exit 0
fi

# An interrupted run leaves no half of a system under its name.
made=$root
[ ! -e "$made" ] || run rmdir "$made" || fail "$made is in the way: it is not empty"
root=$made.part
run rm -rf --one-file-system "$root"
bootstrap "$suite" --include="$packages"
run rm -rf "$root/var/cache/apt/archives"
[ -n "$dry" ] || printf '%s\n' "$suite $packages" > "$root/.bare"
run mv "$root" "$made"
say "$made is a bare $suite"
