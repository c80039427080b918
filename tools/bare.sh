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

say() { printf 'bare: %s\n' "$*"; }
run() { if [ -n "$dry" ]; then printf '+ %s\n' "$*"; else "$@"; fi; }

[ -n "$suite" ] || suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$suite" ] || { say "name a SUITE: this system has no codename"; exit 1; }
mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1)}
[ -n "$mirror" ] || { say "no apt mirror is configured here: set MIRROR"; exit 1; }
case $mirror in *" "*|*://*) ;; *) mirror="http://$mirror" ;; esac
[ ! -e "$root/.bare" ] || { say "$root is there already"; exit 0; }

if [ -z "$dry" ]; then
    [ "$(id -u)" = 0 ] || { say "this needs root"; exit 1; }
    command -v debootstrap >/dev/null || { say "there is no debootstrap: apt-get install debootstrap"; exit 1; }
fi
# Older versions of debootstrap do not know newer releases; sid's script works for all.
script=$(dirname "$(command -v debootstrap || echo /usr/sbin/debootstrap)")/../share/debootstrap/scripts/sid
run debootstrap --variant=minbase --include=python3 "$suite" "$root" "$mirror" "$script"
run touch "$root/.bare"
say "$root is a bare $suite"
