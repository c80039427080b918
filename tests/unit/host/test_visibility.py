"""CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from tests import machines
from torchtailor.advise.host.model import Host


def box(value: str | None, **more: str) -> Host:
    """A100 (0) and RTX 3090 (1) with this CUDA_VISIBLE_DEVICES."""
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    return machines.host("a100-rtx-3090", env={**env, **more})


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, [0, 1]),
        ("0", [0]),
        ("1", [1]),
        ("0,1", [0, 1]),
        (" 1 , 0 ", [0, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),  # CUDA stops at the first that names nothing
        ("9,0", []),
        ("GPU-00000001", [1]),
        ("GPU-00000001-1111-2222-3333-444444444444", [1]),
        ("GPU-0000000", []),  # the beginning of both
        ("GPU-ffff", []),
        ("garbage", []),
        ("0,0", []),  # named twice: CUDA shows none
        ("1,0,01", []),
        ("GPU-00000001,GPU-00000001", []),
        ("0gpu", [0]),
        ("0 1", [0]),
        ("+1", [1]),
        ("²", []),
        ("9" * 5000, []),  # more digits than Python makes a number of
    ],
)
def test_who_is_visible(value: str | None, visible: list[int]) -> None:
    host = box(value)
    assert [gpu.index for gpu in host.visible_gpus] == visible
    assert host.cuda_visible_devices == value


def test_hiding_is_said() -> None:
    assert any("hides every GPU" in note.text for note in box("").notes)
    assert any("leaves only GPU 1 visible" in note.text for note in box("1").notes)
    assert any("names GPU 0, NVIDIA A100-PCIE-40GB twice" in note.text for note in box("0,0").notes)
    assert any("'9' matches no device" in note.text for note in box("0,9").notes)
    assert not any(note.topic == "visible-devices" for note in box("0,1").notes)


def test_numbers_on_a_mixed_machine_depend_on_the_order() -> None:
    assert any(note.topic == "device-order" for note in box("0").notes)
    assert not any(note.topic == "device-order" for note in box("0", CUDA_DEVICE_ORDER="PCI_BUS_ID").notes)
    assert not any(note.topic == "device-order" for note in box("GPU-00000001").notes)


@pytest.mark.parametrize(
    "value",
    ["MIG-aaaaaaaa-0000-1111-2222-333333333333", "MIG-GPU-00000000-1111-2222-3333-444444444444/1/0"],
)
def test_a_mig_instance_makes_its_gpu_visible(value: str) -> None:
    host = machines.host("h100-mig", env={"CUDA_VISIBLE_DEVICES": value})
    assert [gpu.index for gpu in host.visible_gpus] == [0]
