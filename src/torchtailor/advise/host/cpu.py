"""The CPU: what /proc/cpuinfo says, and what archspec and our table of ARM cores make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

import msgspec

from torchtailor.advise.host.model import Cpu
from torchtailor.advise.host.probe import Probe
from torchtailor.core.cgroups import cores_within
from torchtailor.core.tables import read_table

_CPU_FOLDER = "/sys/devices/system/cpu"
Processor = Mapping[str, str]


class ArmCore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A core as its identification register names it."""

    implementer: str
    part: str
    name: str
    label: str


class ArmCores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table in data/arm_cores.toml."""

    implementers: dict[str, str]
    core: tuple[ArmCore, ...]

    def find(self, processor: Processor) -> ArmCore | None:
        wanted = (processor.get("CPU implementer"), processor.get("CPU part"))
        return next((core for core in self.core if (core.implementer, core.part) == wanted), None)


@cache
def arm_cores() -> ArmCores:
    return read_table("advise.host", "arm_cores.toml", ArmCores)


def detect_cpu(probe: Probe) -> Cpu:
    """The CPU of a machine; what cpuinfo lacks is `unknown`, and a machine without cpuinfo has no flags."""
    basics = probe.basics()
    arch = _arch(probe)
    processors = parse_cpuinfo(probe.read("/proc/cpuinfo") or "")
    threads = len(processors) or basics.affinity
    return Cpu(
        arch=arch,
        vendor=_vendor(processors),
        name=_name(processors),
        microarchitecture=_microarchitecture(arch, processors),
        flags=tuple(sorted(common_flags(processors))),
        threads=threads,
        cores=_cores(processors) or threads,
        sockets=_sockets(probe, processors),
        usable=max(1, min(threads, cores_within(basics.affinity, probe.read))),
    )


def _arch(probe: Probe) -> str:
    """The platform in Linux's spelling."""
    arch = probe.basics().arch
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch.lower(), arch)


def parse_cpuinfo(text: str) -> tuple[Processor, ...]:
    """One table per processor. What stands apart from them (as `Hardware` on old ARM kernels) is left out."""
    processors: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key = key.strip()
        if not colon:
            continue
        if key == "processor":
            processors.append({})
        if processors:
            processors[-1].setdefault(key, value.strip())
    return tuple(processors)


def common_flags(processors: tuple[Processor, ...]) -> frozenset[str]:
    """The words that every core has: a program may be moved from a big core to a little one."""
    lists = [frozenset((cpu.get("flags") or cpu.get("Features") or "").split()) for cpu in processors]
    return frozenset.intersection(*lists) if lists else frozenset()


def _vendor(processors: tuple[Processor, ...]) -> str:
    if not processors:
        return "unknown"
    first = processors[0]
    implementer = first.get("CPU implementer", "")
    return first.get("vendor_id") or arm_cores().implementers.get(implementer, implementer) or "unknown"


def _name(processors: tuple[Processor, ...]) -> str:
    """The model name; for ARM, which rarely gives one, its cores with their numbers."""
    if not processors:
        return "unknown"
    known = [arm_cores().find(processor) for processor in processors]
    if any(known):
        counts = Counter(core.label if core else "unknown core" for core in known)
        return " + ".join(f"{count}x {label}" for label, count in counts.items())
    return processors[0].get("model name") or processors[0].get("cpu model") or "unknown"


def _cores(processors: tuple[Processor, ...]) -> int:
    """Physical cores, where cpuinfo numbers them (x86)."""
    pairs = {(cpu.get("physical id"), cpu.get("core id")) for cpu in processors}
    return 0 if any(core is None for _, core in pairs) else len(pairs)


def _sockets(probe: Probe, processors: tuple[Processor, ...]) -> int:
    packages = {cpu["physical id"] for cpu in processors if "physical id" in cpu}
    if not packages:
        folders = [name for name in probe.list(_CPU_FOLDER) if name[:3] == "cpu" and name[3:].isdigit()]
        texts = [probe.read(f"{_CPU_FOLDER}/{name}/topology/physical_package_id") for name in folders]
        packages = {text.strip() for text in texts if text and text.strip() != "-1"}
    return len(packages) or 1


def _microarchitecture(arch: str, processors: tuple[Processor, ...]) -> str:
    """archspec's name; for ARM cores that archspec has no number for, that of our table.

    Without its number archspec would take an ARM core for an older one with fewer features.
    """
    if not processors:
        return "unknown"
    parts = Counter(cpu.get("CPU part", "") for cpu in processors)
    main = next(cpu for cpu in processors if cpu.get("CPU part", "") == parts.most_common(1)[0][0])
    known = arm_cores().find(main)
    return _by_archspec(arch, main, common_flags(processors), exact=known is not None) or (
        known.name if known else "unknown"
    )


def _by_archspec(arch: str, processor: Processor, flags: frozenset[str], *, exact: bool) -> str | None:
    """The newest of archspec's targets that these flags allow; with `exact`, only one of the same ARM part."""
    from archspec.cpu import TARGETS

    if arch not in TARGETS:
        return None
    root = TARGETS[arch]
    flags = flags | {"sse3"} if "pni" in flags else flags  # archspec's name for what Linux calls pni
    part = processor.get("CPU part", "")
    vendor = processor.get("vendor_id") or arm_cores().implementers.get(processor.get("CPU implementer", ""), "")
    runnable = [
        target
        for target in TARGETS.values()
        if (target == root or root in target.ancestors)
        and target.vendor.lower() in (vendor.lower(), "generic")
        and target.features <= flags
    ]
    same_part = [target for target in runnable if part and target.cpu_part == part]
    if exact and not same_part:
        return None
    # ARM's generic levels do not follow from flags alone, so only the vendors' targets count there.
    named = [target for target in runnable if arch != "aarch64" or target.vendor != "generic" or target == root]
    best_generic = max(
        (target for target in runnable if target.vendor == "generic" and target in named),
        key=lambda target: (len(target.ancestors), len(target.features)),
        default=root,
    )
    candidates = same_part or [target for target in named if best_generic in target.ancestors]
    best = max(candidates, key=lambda target: (len(target.ancestors), len(target.features)), default=best_generic)
    return str(best.name)
