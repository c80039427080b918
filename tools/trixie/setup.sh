#!/bin/sh
# Makes a Debian trixie system in a folder, with all that Debian's pytorch source needs, and unpacks that source there.
#
#   sudo tools/trixie/setup.sh FOLDER [--dry-run]
#
# Needs root, debootstrap, 6 GB of disk and a few minutes. Packages come from the mirror that this machine's own apt
# uses; on another distribution, set MIRROR to one. A step is passed over when it was done before, so after a broken
# connection the same command goes on; torchtailor itself is always the one of this repository. tools/trixie/build.sh
# then compiles in it.
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

# No suite has 2.12.1 any more, but the pool may still; its newer cpuinfo is in forky.
newer=2.12.1+dfsg
newer_sha256=95b6f85e1da2776f0cb0e5a635c4430b4e3f05b6ccb9e00237f3cecd15572875
pool=$mirror/pool/main/p/pytorch

fetch_newer() {
    run chroot "$root" sh -ec "cd /src
        for end in .orig.tar.xz -1.debian.tar.xz -1.dsc; do curl -fsSLO '$pool/pytorch_$newer'\$end; done
        echo '$newer_sha256  pytorch_$newer.orig.tar.xz' | sha256sum -c -
        sed -n '/^Checksums-Sha256/,/^Files/s/^ \([0-9a-f]*\) [0-9]* \(.*\)/\1  \2/p' pytorch_$newer-1.dsc | sha256sum -c -"
}

if ! done_before source; then
    run mkdir -p "$root/src"
    if fetch_newer; then
        say "unpacking $newer"
        [ -n "$dry" ] || printf 'deb %s forky main\n' "$mirror" > "$root/etc/apt/sources.list.d/forky.list"
        [ -n "$dry" ] || printf 'Package: *\nPin: release n=forky\nPin-Priority: -1\n\nPackage: libcpuinfo*\nPin: release n=forky\nPin-Priority: 990\n' \
            > "$root/etc/apt/preferences.d/forky"
        # A mirror that lags behind still has signed packages.
        run chroot "$root" apt-get -q -o Acquire::Check-Valid-Until=false update
        run chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends libcpuinfo-dev
        run chroot "$root" sh -ec "cd /src && rm -rf pytorch && dpkg-source -x pytorch_$newer-1.dsc pytorch"
        # Debian's patches leave a header that another flatc made.
        run chroot "$root" sh -ec 'cd /src/pytorch/torch/csrc/jit/serialization && flatc --cpp --gen-mutable --scoped-enums mobile_bytecode.fbs'
    else
        say "the pool has no $newer: fetching the suite's own source"
        run chroot "$root" sh -ec 'cd /src && rm -rf pytorch && apt-get -q source --download-only pytorch && dpkg-source -x pytorch_*.dsc pytorch'
    fi
    # Debian's libraries are found by the system; those of a wheel find each other.
    run chroot "$root" sh -ec "cd /src/pytorch && sed -i 's/^set(CMAKE_INSTALL_RPATH \"\")/set(CMAKE_INSTALL_RPATH \"\${_rpath_portable_origin}\")/' cmake/Dependencies.cmake"
    # Debian's label of the version is taken back: torchtailor gives its own.
    run chroot "$root" sh -ec "cd /src/pytorch && sed '/^Index: .*version.txt/,\$d' debian/patches/2000-version.patch | patch -R -p1"
    mark source
fi

say "installing torchtailor"
run rm -rf "$root/torchtailor"
run mkdir -p "$root/torchtailor"
run cp -r "$repository/pyproject.toml" "$repository/README.md" "$repository/LICENSE" "$repository/src" "$root/torchtailor/"
# This machine's certificates, which may hold one of the local network; the package has written its own.
bundle=/etc/ssl/certs/ca-certificates.crt
[ ! -f "$bundle" ] || run cp -L "$bundle" "$root$bundle"
[ ! -f /etc/pip.conf ] || run cp /etc/pip.conf "$root/etc/pip.conf"
run chroot "$root" sh -c 'python3 -m venv /opt/torchtailor && /opt/torchtailor/bin/pip install -q /torchtailor'

say "ready: tools/trixie/build.sh $root"
