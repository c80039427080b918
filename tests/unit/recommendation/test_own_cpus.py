"""GPUs that come with their own CPU: never this machine's is assumed for them."""

from __future__ import annotations

import pytest

from tests import machines
from torchtailor.advise.host.model import Cpu, Host
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host
from torchtailor.core.errors import ImpossibleError


def not_this_cpu() -> Cpu:
    raise AssertionError("this machine's CPU was asked for")


def hypothetical(gpu: str, **more: str) -> Host:
    return hypothetical_host(machines.catalog(), GivenParts((gpu,), **more), None, not_this_cpu)


@pytest.mark.parametrize(
    ("gpu", "core"),
    [
        ("GB200", "grace"),
        ("NVIDIA GB200", "grace"),
        ("GB300", "grace"),
        ("GH200", "grace"),
        ("NVIDIA GH200 480GB", "grace"),
        ("NVIDIA GH200 144G HBM3e", "grace"),
        ("NVIDIA GB10", "gb10"),
        ("12.1", "gb10"),
        ("NVIDIA Thor", "neoverse_v3ae"),
        ("Jetson T4000", "neoverse_v3ae"),
        ("sm_110", "neoverse_v3ae"),
        ("Orin (nvgpu)", "cortex_a78ae"),
        ("Jetson Orin Nano", "cortex_a78ae"),
        ("8.7", "cortex_a78ae"),
        ("Xavier", "carmel"),
        ("Jetson TX2", "denver2"),
        ("Jetson Nano", "cortex_a57"),
        ("T4G", "neoverse_n1"),
    ],
)
def test_the_cpu_comes_with_the_gpu(gpu: str, core: str) -> None:
    host = hypothetical(gpu)
    assert (host.cpu.microarchitecture, host.cpu.arch) == (core, "aarch64")
    assert any("comes with its own CPU" in note.text for note in host.notes)


@pytest.mark.parametrize("gpu", ["GH200", "NVIDIA GB200", "Jetson Nano", "12.1"])
def test_another_platforms_cpu_is_refused(gpu: str) -> None:
    with pytest.raises(ImpossibleError, match="only with aarch64 hosts"):
        hypothetical(gpu, cpu="zen4")


@pytest.mark.parametrize("gpu", ["M4", "B200", "H100", "T4", "RTX 5090"])
def test_other_gpus_come_without(gpu: str) -> None:
    """M4 is a Tesla here, not Apple's CPU."""
    with pytest.raises(AssertionError, match="this machine's CPU"):
        hypothetical(gpu)


@pytest.mark.parametrize("gpu", ["Jetson Nano", "Jetson TX2", "NVIDIA Jetson TX2 NX Developer Kit"])
def test_jetpack_4_is_too_old_and_said_to_be(gpu: str) -> None:
    host = hypothetical(gpu)
    assert (host.system.libc, host.system.libc_version) == ("glibc", "2.27")
    assert any("glibc 2.27" in note.text and "no wheel" in note.text for note in host.notes)


def test_a_name_with_two_readings_is_noted() -> None:
    host = hypothetical_host(machines.catalog(), GivenParts(("GTX 860M",), cpu="zen2"), None, not_this_cpu)
    assert host.gpus[0].capability == "3.0"
    assert any("GK104, 3.0" in note.text and "GM107, 5.0" in note.text for note in host.notes)
