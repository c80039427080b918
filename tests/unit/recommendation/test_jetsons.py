"""Jetsons: the JetPack decides, and each chip has its own."""

from __future__ import annotations

import tomllib

import pytest
from msgspec.structs import replace

from tests import machines
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.model import Cpu
from torchtailor.advise.host.probe import ReplayProbe
from torchtailor.advise.host.tegra import tegra_table
from torchtailor.advise.recommendation import Recommendation, Request
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host
from torchtailor.catalog import Dotted
from torchtailor.core.errors import ImpossibleError, UsageError


def not_this_cpu() -> Cpu:
    raise AssertionError("this machine's CPU was asked for")


def ask(gpu: str, **more: str) -> Recommendation:
    host = hypothetical_host(machines.catalog(), GivenParts((gpu,), **more), None, not_this_cpu)
    return recommend_for(machines.matrix(), host, Request())


@pytest.mark.parametrize(
    "hidden",
    [("/proc/device-tree/",), ("/etc/nv_tegra_release",), ("/proc/device-tree/", "/etc/nv_tegra_release")],
    ids=["no device tree", "no release file", "neither"],
)
@pytest.mark.parametrize(
    ("machine", "chip", "wheel"),
    [
        ("thor-jetpack-7", "tegra264", "pytorch215-python313-cuda13_2-sm110-armv9"),
        ("orin-jetpack-7", "tegra234", "pytorch215-python313-cuda13_2-sm80-armv8_2"),
        ("orin-jetpack-6", "tegra234", None),  # no server wheel runs on it
    ],
)
def test_a_container_hides_what_the_system_is(
    machine: str, chip: str, wheel: str | None, hidden: tuple[str, ...]
) -> None:
    """Docker masks the device tree, and the release file belongs to the host."""
    whole = machines.recording(machine)
    left = {path: text for path, text in whole.files.items() if not path.startswith(hidden)}
    host = detect(ReplayProbe(replace(whole, files=left)), machines.catalog())
    assert host.tegra is not None
    assert (host.tegra.chip, host.gpus[0].integrated) == (chip, True)
    best = recommend_for(machines.matrix(), host, Request()).best
    assert (best and best.variant) == wheel


@pytest.mark.parametrize(
    ("gpu", "jetpack"),
    [
        ("Jetson Nano", "6"),
        ("Jetson Nano", "5.1.2"),
        ("Jetson TX2", "7.2"),
        ("Jetson AGX Xavier", "6.2"),
        ("Jetson Xavier NX", "7"),
        ("Jetson AGX Orin", "4.6"),
        ("Jetson Orin Nano", "7.0"),  # "Version 38.4 of Jetson Linux does not support the Jetson Orin product family"
        ("Jetson Orin NX", "7.1"),
        ("Jetson AGX Thor", "6.2"),
    ],
)
def test_a_jetpack_that_the_chip_does_not_have_is_refused(gpu: str, jetpack: str) -> None:
    with pytest.raises(ImpossibleError) as caught:
        ask(gpu, jetpack=jetpack)
    assert f"There is no JetPack {jetpack} for {gpu}" in caught.value.message and "--jetpack" in caught.value.hint


@pytest.mark.parametrize("jetpack", ["3.3", "9", "10.1", "six"])
def test_a_jetpack_that_nobody_knows_is_refused(jetpack: str) -> None:
    with pytest.raises(UsageError):
        ask("Jetson AGX Orin", jetpack=jetpack)


@pytest.mark.parametrize(
    ("gpu", "jetpack", "taken"),
    [
        ("Jetson AGX Orin", "6", "6.2"),
        ("Jetson AGX Orin", "7", "7.2"),
        ("Jetson AGX Thor", "7", "7.2"),
        ("Jetson AGX Xavier", "5", "5"),
        ("Jetson AGX Orin", "6.0", "6.0"),
        ("Jetson AGX Orin", "6.2.1", "6.2"),
    ],
)
def test_a_bare_jetpack_is_its_newest(gpu: str, jetpack: str, taken: str) -> None:
    found = ask(gpu, jetpack=jetpack)
    assert found.machine.endswith(f"JetPack {taken}")


@pytest.mark.parametrize(
    ("driver", "taken"), [("540.4.0", "6.2"), ("540.3.0", "6.0"), ("540.5.0", "6.2"), ("540", "6.2"), ("595.45", "7.2")]
)
def test_the_driver_tells_the_jetpack(driver: str, taken: str) -> None:
    found = ask("Jetson AGX Orin", driver=driver)
    assert found.machine.endswith(f"JetPack {taken}")
    assert any(f"comes with JetPack {taken[0]}" in note for note in found.notes)


def test_a_driver_of_no_jetpack_is_said_to_be_one() -> None:
    found = ask("Jetson AGX Orin", driver="535")
    assert any("no known JetPack" in note for note in found.notes)
    assert not any("driver branch" in note for note in found.notes)


@pytest.mark.parametrize("gpu", ["Jetson AGX Orin", "Jetson Orin Nano", "8.7", "IGX Orin"])
def test_without_a_jetpack_each_gets_its_answer(gpu: str) -> None:
    found = ask(gpu)
    texts = [one.text for one in found.alternatives if one.kind == "jetpack"]
    assert [text.partition(":")[0] for text in texts] == ["With JetPack 7.2", "With JetPack 6.2", "With JetPack 5"]
    seven, six, five = texts
    assert "pytorch215-python313-cuda13_2-sm80-armv8_2, using the official wheel" in seven
    assert "sm87-armv8_2 of PyTorch 2.14.1 with CUDA 12.6, built from source" in six
    assert "sm87-armv8_2 of PyTorch 2.7.1 with CUDA 11.8" in five and "cuda-compat-11-8" in five


@pytest.mark.parametrize("jetpack", ["5", "6.0", "6.2", "7.2"])
def test_each_says_the_same_as_when_its_jetpack_is_given(jetpack: str) -> None:
    found = ask("Jetson AGX Orin", jetpack=jetpack)
    own = next((one for one in found.alternatives if one.toml), None)
    assert (found.best is not None) == (jetpack == "7.2")
    if found.best is None:
        row = tegra_table().by_jetpack(jetpack)
        assert row is not None and own is not None and own.toml is not None
        assert f'cuda = "{row.cuda.split(".")[0]}.' in own.toml
        cuda = tomllib.loads(own.toml)["row"][0]["cuda"]
        assert ("cuda-compat" in own.text) == (Dotted(cuda) > Dotted(row.cuda))


def test_orin_and_cu130_do_not_contradict_each_other() -> None:
    """sm_80 of cu132 runs on Orin, sm_80 of cu130 does not: that must be said, not "none runs"."""
    found = ask("Jetson AGX Orin", jetpack="7.2")
    assert found.best is not None and found.best.code == "sm_80"
    (reason,) = (one.reason for one in found.rejected if "cu130" in one.what)
    assert reason.endswith("none of which runs on SM87 (sm_80 code does from CUDA 13.2 on).")


def test_xavier_needs_a_compatibility_package_and_the_page_says_the_same() -> None:
    (own,) = (one for one in ask("Jetson AGX Xavier", jetpack="5.1.2").alternatives if one.toml)
    assert "sm72-carmel of PyTorch 2.7.1 with CUDA 11.8" in own.text and "cuda-compat-11-8" in own.text
