# Shared by the scripts that create Debian systems and work in them; read with `.` after `name` and `root` are set.
# shellcheck shell=sh disable=SC2154

say() { printf '%s: %s\n' "$name" "$*" >&2; }
fail() { say "$*"; exit 1; }
run() { if [ -n "${dry:-}" ]; then printf '+ %s\n' "$*"; else "$@"; fi; }
need_root() { [ "$(id -u)" = 0 ] || fail "this needs root"; }

# A minimal system: bootstrap SUITE [options of debootstrap]. Packages come from the mirror that this machine's own apt
# uses, unless MIRROR is set.
bootstrap() {
    suite=$1
    shift
    # Older versions of debootstrap do not know newer releases; sid's script works for all.
    script=$(dirname "$(command -v debootstrap || echo /usr/sbin/debootstrap)")/../share/debootstrap/scripts/sid
    run debootstrap --variant=minbase "$@" "$suite" "$root" "$mirror" "$script"
}

find_mirror() {
    mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1)}
    [ -n "$mirror" ] || fail "no apt mirror is configured here: set MIRROR"
    case $mirror in *" "*|*://*) ;; *) mirror="http://$mirror" ;; esac
    if [ -z "${dry:-}" ]; then
        need_root
        command -v debootstrap >/dev/null || fail "there is no debootstrap: apt-get install debootstrap"
    fi
}

# A command in the system: enter [NAME=VALUE ...] COMMAND. `namespaces` may hold further options of unshare, such as --net.
# Its /proc, /sys, /dev/pts and /dev/shm end with it, however it ends.
enter() {
    # This machine's name server, and the certificates that its network needs.
    for file in /etc/resolv.conf ${PIP_CERT:+"$PIP_CERT"}; do
        [ ! -e "$file" ] || { mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; }
    done
    set -- HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} "$@"
    # shellcheck disable=SC2086
    unshare --mount --propagation private ${namespaces:-} sh -ec 'root=$1
        shift
        # A build that was killed may have left its own.
        mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
        mountpoint -q "$root/sys" || mount -t sysfs sysfs "$root/sys"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
        # Pseudo-terminals, where the system has devices.
        if [ -e "$root/dev/ptmx" ]; then
            mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
            mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
        fi
        exec chroot "$root" env -i "$@"' sh "$root" "$@"
}
