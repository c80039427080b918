"""Operating system, C library, container, memory and disk."""

from __future__ import annotations

import re

import msgspec

from torchtailor.advise.host.model import Host, Note, Room, System
from torchtailor.advise.host.probe import Probe
from torchtailor.core.cgroups import memory_limit

NOT_LINUX = "not-linux"  # the topic of the note on other systems

_NAMES = {"Darwin": "macOS"}
# Other systems as Python, uname and people call them.
_OTHER_NAMES = re.compile(
    r"(?P<macos>mac ?os\b|darwin|os ?x\b)|(?P<windows>windows|win(?:32|nt)?\b|cygwin|msys|mingw)"
    r"|(?P<freebsd>freebsd|dragonfly)|(?P<openbsd>openbsd)|(?P<netbsd>netbsd)|(?P<sunos>sunos|solaris|illumos)",
    re.IGNORECASE,
)
_OTHER_SYSTEMS = {
    "macos": "On macOS PyTorch's own wheels use the GPU through MPS (there is no CUDA for macOS) and hold no GPU code "
    "to cut: install them with pip. torchtailor makes builds for Linux; describe a Linux machine with --gpu and --cpu.",
    "windows": "PyTorch's own CUDA wheels for Windows are installed with pip from PyTorch's index, and torchtailor "
    "does not cut them: it makes builds for Linux. Under WSL 2 the same GPU runs them.",
}


def detect_system(probe: Probe) -> System:
    release = parse_os_release(probe.read("/etc/os-release") or probe.read("/usr/lib/os-release") or "")
    basics = probe.basics()
    if basics.system != "Linux":
        name = _NAMES.get(basics.system, basics.system)
        return System(os=name, os_id=name.lower(), os_version="", kernel=basics.kernel, libc=None, libc_version=None)
    libc, version = _libc(probe)
    return System(
        os=release.get("PRETTY_NAME") or release.get("NAME") or "unknown",
        os_id=release.get("ID", "unknown"),
        os_version=release.get("VERSION_ID", ""),
        kernel=basics.kernel,
        libc=libc,
        libc_version=version,
        container=_container(probe),
        wsl="microsoft" in basics.kernel.lower(),
    )


def with_known_system(host: Host) -> Host:
    """A description that may be written by hand: another system than Linux is known by any of its names."""
    named = _OTHER_NAMES.match(host.system.os_id) or _OTHER_NAMES.match(host.system.os)
    if named is None or named.lastgroup is None:
        return host
    system = msgspec.structs.replace(host.system, os_id=named.lastgroup)
    notes = tuple(note for note in host.notes if note.topic != NOT_LINUX)
    return msgspec.structs.replace(host, system=system, notes=(*system_notes(system), *notes))


def detect_room(probe: Probe) -> Room:
    basics = probe.basics()
    memory: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", probe.read("/proc/meminfo") or "", re.MULTILINE))
    total = int(memory.get("MemTotal", 0)) * 1024
    limit = memory_limit(probe.read)
    return Room(
        memory_total=total,
        memory_available=int(memory.get("MemAvailable") or memory.get("MemFree") or 0) * 1024,
        memory_limit=limit if limit is not None and (not total or limit < total) else None,
        disk_free=basics.disk_free,
        disk_path=basics.directory,
    )


def system_notes(system: System) -> tuple[Note, ...]:
    if not system.linux:
        text = _OTHER_SYSTEMS.get(system.os_id, f"torchtailor makes builds for Linux, and this is {system.os}.")
        return (Note(topic=NOT_LINUX, text=text),)
    if system.libc == "musl":
        text = (
            "The C library is musl: there are no PyTorch wheels for it, and those for glibc and CUDA do not run on it. "
            "In a container with glibc (Debian, Ubuntu) on the same machine they do."
        )
        return (Note(topic="musl", text=text),)
    return ()


def parse_os_release(text: str) -> dict[str, str]:
    """The shell assignments of os-release, unquoted."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
            values[key] = value[1:-1] if quoted else value
    return values


def _libc(probe: Probe) -> tuple[str | None, str | None]:
    match = re.fullmatch(r"(\w+) (\d+(?:\.\d+)*)", probe.basics().libc.strip())
    if match:
        return match[1], match[2]
    if any(name.startswith("ld-musl-") for name in probe.list("/lib")):
        return "musl", None
    return None, None


def _container(probe: Probe) -> str | None:
    """The kind of container around us; Kubernetes is named before the runtime it uses."""
    cgroup = probe.read("/proc/1/cgroup") or probe.read("/proc/self/cgroup") or ""
    named = (probe.read("/run/systemd/container") or probe.env("container") or "").strip()
    signs = (
        ("kubernetes", probe.env("KUBERNETES_SERVICE_HOST") is not None or "kubepods" in cgroup),
        ("apptainer", probe.env("APPTAINER_NAME") is not None or probe.env("SINGULARITY_NAME") is not None),
        ("podman", probe.read("/run/.containerenv") is not None or named == "podman"),
        ("docker", probe.read("/.dockerenv") is not None or "docker" in cgroup or named == "docker"),
        ("lxc", named == "lxc" or "/lxc/" in cgroup),
        (named, bool(named)),
    )
    return next((name for name, seen in signs if seen), None)
