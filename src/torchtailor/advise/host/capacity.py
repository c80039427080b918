"""The cores and the memory that are free for a build, within the limits of the control group."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.advise.host.probe import Probe
from torchtailor.advise.host.system import detect_room
from torchtailor.core.cgroups import cores_within, memory_limit


@dataclass(frozen=True, slots=True)
class Capacity:
    """Cores and bytes of memory that a build may use."""

    cores: int
    memory: int


def capacity(probe: Probe) -> Capacity:
    """Free memory includes reclaimable caches; of a container's limit, what is in use is subtracted."""
    room = detect_room(probe)
    memory = room.memory_available
    limit = memory_limit(probe.read)
    if limit is not None:
        memory = min(memory, max(0, limit - _used_in_group(probe)))
    return Capacity(cores_within(probe.basics().affinity, probe.read), memory)


def _used_in_group(probe: Probe) -> int:
    """Memory of this process's group that is not reclaimable cache (version 2)."""
    for line in (probe.read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            folder = f"/sys/fs/cgroup{line[3:].rstrip('/')}"
            used = (probe.read(f"{folder}/memory.current") or "").strip()
            statistics = dict(
                pair
                for row in (probe.read(f"{folder}/memory.stat") or "").splitlines()
                if len(pair := row.split()) == 2
            )
            cached = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
            return max(0, int(used) - cached) if used.isdigit() else 0
    return 0
