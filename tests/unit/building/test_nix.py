"""How many compilers a build with Nix starts."""

from __future__ import annotations

import pytest

from torchtailor.advise.host.probe import Basics, Recording, ReplayProbe
from torchtailor.building.nix.job import default_cores

GB = 1024**3


def machine(gigabytes: int, **files: str) -> ReplayProbe:
    """One with 64 cores and so much free memory."""
    memory = {"/proc/meminfo": f"MemTotal: {4000 << 20} kB\nMemAvailable: {gigabytes << 20} kB\n"}
    return ReplayProbe(Recording(basics=Basics(arch="x86_64", kernel="6.8", affinity=64), files={**memory, **files}))


@pytest.mark.parametrize(("gigabytes", "cores"), [(1, 1), (9, 2), (40, 10), (4000, 64)])
def test_cores_follow_memory(gigabytes: int, cores: int) -> None:
    assert default_cores(machine(gigabytes)) == cores


def test_cores_and_memory_of_a_container() -> None:
    pod = {"/proc/self/cgroup": "0::/pod\n"}
    assert default_cores(machine(4000, **pod, **{"/sys/fs/cgroup/pod/cpu.max": "200000 100000\n"})) == 2
    limits = {"/sys/fs/cgroup/pod/memory.max": f"{12 * GB}\n", "/sys/fs/cgroup/pod/memory.current": "0\n"}
    assert default_cores(machine(4000, **pod, **limits)) == 3
