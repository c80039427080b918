"""The CPU: archspec's own recordings, cores that differ, limits of containers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import archspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import machines
from torchtailor.advise.host.cpu import arm_cores, common_flags, detect_cpu, parse_cpuinfo
from torchtailor.advise.host.probe import Basics, Recording, ReplayProbe
from torchtailor.core import cgroups
from torchtailor.core.cgroups import cpu_limit, memory_limit

DUMPS = sorted((Path(archspec.__file__).parent / "json/tests/targets").glob("linux-*"))
FAMILIES = {"vendor_id": "x86_64", "CPU implementer": "aarch64"}


def replay(arch: str = "x86_64", **parts: object) -> ReplayProbe:
    basics = parts.pop("basics", Basics(arch=arch, kernel="6.8", affinity=999))
    return ReplayProbe(Recording(basics=basics, **parts))  # type: ignore[arg-type]


def dumps_of_ours() -> list[tuple[str, str, str]]:
    found = []
    for path in DUMPS:
        text = path.read_text()
        arch = next((arch for sign, arch in FAMILIES.items() if sign in text), None)
        if arch is not None:
            found.append((arch, path.name.rpartition("-")[2], text))
    return found


@pytest.mark.skipif(not DUMPS, reason="this archspec comes without its recorded machines")
@pytest.mark.parametrize(("arch", "target", "text"), dumps_of_ours(), ids=lambda value: str(value)[:24])
def test_we_find_what_archspec_finds(arch: str, target: str, text: str) -> None:
    cpu = detect_cpu(replay(arch, files={"/proc/cpuinfo": text}))
    assert cpu.microarchitecture == target
    assert cpu.arch == arch


def test_only_words_that_all_cores_have_count() -> None:
    text = "processor: 0\nflags: avx avx2 avx512f\n\nprocessor: 1\nflags: avx avx2\n"
    assert common_flags(parse_cpuinfo(text)) == {"avx", "avx2"}


def test_cores_of_two_kinds_are_named_with_their_numbers() -> None:
    cpu = machines.host("dgx-spark").cpu
    assert cpu.name == "10x Cortex-X925 + 10x Cortex-A725"
    assert (cpu.vendor, cpu.microarchitecture, cpu.threads) == ("ARM", "cortex_x925", 20)


def test_an_arm_core_unknown_to_archspec_is_not_taken_for_an_older_one() -> None:
    assert machines.host("orin-jetpack-6").cpu.microarchitecture == "cortex_a78ae"
    assert machines.host("xavier-jetpack-5").cpu.microarchitecture == "carmel"


def test_threads_cores_and_sockets() -> None:
    cpu = machines.host("skylake-sp").cpu
    assert (cpu.threads, cpu.cores, cpu.sockets) == (4, 2, 2)


def test_sockets_of_arm_come_from_sysfs() -> None:
    name = "/sys/devices/system/cpu"
    probe = replay(
        "aarch64",
        files={
            "/proc/cpuinfo": "processor: 0\nFeatures: fp\n\nprocessor: 1\nFeatures: fp\n",
            f"{name}/cpu0/topology/physical_package_id": "0\n",
            f"{name}/cpu1/topology/physical_package_id": "1\n",
        },
        folders={name: ("cpu0", "cpu1", "cpufreq")},
    )
    assert detect_cpu(probe).sockets == 2


def test_a_machine_without_cpuinfo_is_described_all_the_same() -> None:
    cpu = detect_cpu(replay("aarch64", basics=Basics(arch="arm64", kernel="", affinity=3)))
    assert (cpu.arch, cpu.flags, cpu.threads, cpu.name) == ("aarch64", (), 3, "unknown")


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            "0::/a/b\n",
            {"/sys/fs/cgroup/a/cpu.max": "100000 100000\n", "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"},
            1.0,
        ),
        (
            "3:cpu,cpuacct:/docker/x\n",
            {
                "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "150000\n",
                "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "50000\n",
            },
            3.0,
        ),
        (
            "3:cpu,cpuacct:/\n",
            {
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ("", {}, None),
        ("nonsense\n::\n", {"/sys/fs/cgroup/cpu.max": "a b c\n"}, None),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "\n"}, None),
    ],
)
def test_quotas_of_control_groups(cgroup: str, files: dict[str, str], limit: float | None) -> None:
    assert cpu_limit(replay(files={"/proc/self/cgroup": cgroup, **files}).read) == limit


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/\n", {"/sys/fs/cgroup/memory.max": "8589934592\n"}, 8 << 30),
        ("0::/\n", {"/sys/fs/cgroup/memory.max": "max\n"}, None),
        ("4:memory:/x\n", {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
        ("4:memory:/\n", {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_memory_limits_of_control_groups(cgroup: str, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(replay(files={"/proc/self/cgroup": cgroup, **files}).read) == limit


def test_usable_is_the_least_of_threads_affinity_and_quota() -> None:
    pod = machines.host("kubernetes-pod")
    assert (pod.cpu.threads, pod.cpu.usable) == (4, 2)
    assert pod.room.memory_limit == 8 << 30
    pinned = machines.recording("zen4")
    basics = Basics(arch="x86_64", kernel="", affinity=1)
    assert detect_cpu(ReplayProbe(Recording(basics=basics, files=pinned.files))).usable == 1
    tiny = {"/proc/self/cgroup": ("0::/",), "/sys/fs/cgroup/cpu.max": ("10000 100000",)}
    assert machines.host("zen4", files=tiny).cpu.usable == 1


def test_the_cores_of_this_process_are_within_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with 2 CPUs of 64 gets 2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    files: dict[str, str] = {}
    monkeypatch.setattr(cgroups, "_read", files.get)
    assert cgroups.available_cores() == 64
    files |= {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert cgroups.available_cores() == 2
    files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n"
    assert cgroups.available_cores() == 1


def test_nobody_counts_the_machines_cores_instead() -> None:
    source = Path(cgroups.__file__).parents[1]
    counting = re.compile(r"cpu_count\(|sched_getaffinity\(")
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if counting.search(path.read_text())}
    # The probe records what is there; the fingerprint runs on workers that may lack torchtailor.
    assert found == {"core/cgroups.py", "advise/host/probe.py", "building/farm/fingerprint.py"}


def test_the_table_of_arm_cores_has_each_core_once() -> None:
    table = arm_cores()
    keys = [(core.implementer, core.part) for core in table.core]
    assert len(keys) == len(set(keys))
    assert {core.implementer for core in table.core} <= set(table.implementers)


@given(st.text())
def test_any_text_as_cpuinfo_gives_a_cpu(text: str) -> None:
    assert detect_cpu(replay(files={"/proc/cpuinfo": text})).threads >= 1


def test_a_core_without_an_instruction_counts_for_the_whole_cpu() -> None:
    """The first core alone would do: the others must run the code too."""
    recording = machines.recording("zen4")
    text = ReplayProbe(recording).read("/proc/cpuinfo") or ""
    assert text.count("processor") > 0
    lesser = "processor : 999\nflags : fpu sse2\n"
    probe = ReplayProbe(machines.recording("zen4", files={"/proc/cpuinfo": text + "\n" + lesser}))
    assert machines.catalog().isa("avx2").runs_on(detect_cpu(ReplayProbe(recording)).flags)
    assert not machines.catalog().isa("avx2").runs_on(detect_cpu(probe).flags)
