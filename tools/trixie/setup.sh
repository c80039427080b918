#!/bin/sh
# Makes a Debian trixie system in a folder, with all that Debian's pytorch source needs, and unpacks that source there.
#
#   sudo tools/trixie/setup.sh FOLDER [--dry-run]
#
# Needs root, debootstrap, 6 GB of disk and a few minutes. Packages come from the mirror that this machine's own apt
# uses; on another distribution, set MIRROR to one. Every step is passed over when it was done before, so after a
# broken connection the same command goes on. tools/trixie/build.sh then compiles in it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
root=${1:?"usage: $0 FOLDER [--dry-run]"}
dry=${2:-}
suite=trixie

say() { printf 'trixie: %s\n' "$*"; }
run() { if [ -n "$dry" ]; then printf '+ %s\n' "$*"; else "$@"; fi; }
done_before() { [ -e "$root/.trixie/$1" ]; }
mark() { [ -n "$dry" ] || { mkdir -p "$root/.trixie" && touch "$root/.trixie/$1"; }; }

mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1)}
[ -n "$mirror" ] || { say "no apt mirror is configured here: set MIRROR"; exit 1; }
case $mirror in *" "*|*://*) ;; *) mirror="http://$mirror" ;; esac
packages=$(grep -v '^#' "$here/packages.txt" | tr '\n' ' ')

if [ -z "$dry" ]; then
    [ "$(id -u)" = 0 ] || { say "this needs root"; exit 1; }
    command -v debootstrap >/dev/null || { say "there is no debootstrap: apt-get install debootstrap"; exit 1; }
fi

if ! done_before base; then
    say "making a $suite system in $root"
    # Older debootstraps do not know trixie; all releases of Debian are made by the script of sid.
    script=$(dirname "$(command -v debootstrap || echo /usr/sbin/debootstrap)")/../share/debootstrap/scripts/sid
    run debootstrap --variant=minbase "$suite" "$root" "$mirror" "${DEBOOTSTRAP_SCRIPT:-$script}"
    mark base
fi

if ! done_before packages; then
    say "installing packages"
    if [ -z "$dry" ]; then
        printf 'deb %s %s main\ndeb-src %s %s main\n' "$mirror" "$suite" "$mirror" "$suite" > "$root/etc/apt/sources.list"
        cp /etc/resolv.conf "$root/etc/resolv.conf"
        # The machine's own settings for apt: proxies and certificates.
        for file in /etc/apt/apt.conf.d/*proxy*; do [ ! -e "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
    fi
    run chroot "$root" apt-get -q update
    # shellcheck disable=SC2086
    run chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $packages
    mark packages
fi

if ! done_before source; then
    say "fetching and unpacking the source"
    run mkdir -p "$root/src"
    run chroot "$root" sh -c 'cd /src && apt-get -q source --download-only pytorch && dpkg-source -x pytorch_*.dsc pytorch'
    mark source
fi

if ! done_before torchtailor; then
    say "installing torchtailor"
    run mkdir -p "$root/torchtailor"
    run cp -r "$repository/pyproject.toml" "$repository/README.md" "$repository/LICENSE" "$repository/src" "$root/torchtailor/"
    # This machine's certificates, which may hold one of the local network; the package has written its own.
    bundle=/etc/ssl/certs/ca-certificates.crt
    [ ! -f "$bundle" ] || run cp -L "$bundle" "$root$bundle"
    [ ! -f /etc/pip.conf ] || run cp /etc/pip.conf "$root/etc/pip.conf"
    run chroot "$root" sh -c 'python3 -m venv /opt/torchtailor && /opt/torchtailor/bin/pip install -q /torchtailor'
    mark torchtailor
fi

say "ready: tools/trixie/build.sh $root"
