"""What the driver uses of a library, by a reading of its own that must agree with the rules of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.surgery.checks import RULES
from tests.unit.surgery.test_policy import concatenated, images
from torchtailor.catalog import Capability, load_catalog
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Suffix
from torchtailor.code.gpucode.fatbin import Image
from torchtailor.code.gpucode.runnable import DriverReading, driver_readings, lost_code, used_images
from torchtailor.code.gpucode.scan import Reference

DEVICES = tuple(load_catalog().gpus)
CODES = st.builds(
    CodeTarget,
    kind=st.sampled_from((CodeKind.CUBIN, CodeKind.PTX)),
    capability=st.sampled_from(DEVICES),
    suffix=st.sampled_from(Suffix),
)


@dataclass(frozen=True)
class Held:
    """A container with these images."""

    images: tuple[Image, ...]
    reference: Reference = Reference.WRAPPER
    loaded: bool = True
    can_be_cut: bool = True


def held(names: str, reference: Reference = Reference.WRAPPER) -> Held:
    return Held(images(names), reference)


def used(device: str, *containers: Held) -> list[str]:
    reading = DriverReading(Capability.parse(device), RULES)
    return [" ".join(sorted(map(str, codes))) for codes in reading.used(containers)]


@settings(max_examples=examples(500))
@given(device=st.sampled_from(DEVICES), codes=st.frozensets(CODES, max_size=8), unified=st.booleans())
def test_both_readings_of_the_driver_agree(device: Capability, codes: frozenset[CodeTarget], unified: bool) -> None:
    (taken,) = DriverReading(device, RULES, unified).used([held(" ".join(map(str, codes)))])
    best = RULES.best(device, codes, unified_tegra=unified)
    assert taken == ({best} if best else set())


@pytest.mark.parametrize(
    ("device", "linked", "objects", "expected"),
    [
        ("9.0", "sm_80", "sm_80 compute_80", ["", "compute_80"]),
        ("8.0", "sm_80", "sm_80 compute_80", ["sm_80", ""]),
        ("8.6", "sm_80", "sm_80 compute_80", ["sm_80", ""]),
        ("9.0", "sm_80", "sm_80 sm_90 compute_80", ["", "compute_80 sm_90"]),  # the driver links relocatable cubins too
        ("9.0", "sm_80", "compute_75 compute_80 compute_100", ["", "compute_80"]),
        ("9.0", "", "compute_80", ["", "compute_80"]),
        ("9.0", "sm_80 compute_80", "compute_80", ["compute_80", "compute_80"]),
        ("9.0", "sm_80", "lto_80", ["", ""]),  # the driver does not link LTO-IR
        ("9.0", "sm_80", "sm_80", ["", ""]),
    ],
)
def test_a_device_link(device: str, linked: str, objects: str, expected: list[str]) -> None:
    assert used(device, held(linked, Reference.LINKED), held(objects, Reference.PRELINKED)) == expected


def test_any_link_without_a_cubin_makes_the_driver_link() -> None:
    links = [held("sm_90", Reference.LINKED), held("sm_80", Reference.LINKED)]
    assert used("9.0", *links, held("compute_80", Reference.PRELINKED)) == ["sm_90", "", "compute_80"]


def test_objects_without_a_device_link_are_containers_like_others() -> None:
    assert used("9.0", held("sm_80 sm_90", Reference.PRELINKED)) == ["sm_90"]


def test_link_time_code_of_other_containers() -> None:
    assert used("9.0", held("lto_50 lto_90a lto_100 sm_80")) == ["lto_50 lto_90a"]
    assert DriverReading(Capability(9, 0), RULES, lto=False).used([held("lto_50")]) == [frozenset()]


def test_a_gpu_with_two_driver_stacks() -> None:
    found = driver_readings([Capability(8, 7), Capability(9, 0)], RULES, lto=True)
    assert [(str(one.device), one.unified_tegra) for one in found] == [("8.7", False), ("8.7", True), ("9.0", False)]
    (kept,) = used_images([held("sm_80 sm_86 compute_80")], found[:2])
    assert [image.label for image in kept] == ["sm_86", "compute_80"]


def test_what_was_lost() -> None:
    stock = [held("sm_80", Reference.LINKED), held("sm_80 compute_80", Reference.PRELINKED), held("sm_80 sm_90")]
    emptied = [held("", Reference.LINKED), held("", Reference.PRELINKED), held("sm_90")]
    (lost,) = lost_code(stock, emptied, [DriverReading(Capability(9, 0), RULES)])
    assert (lost.container, str(lost.code), lost.jit_link) == (1, "compute_80", True)
    assert "the driver links code for 9.0 when the library is loaded" in str(lost)
    both = [DriverReading(Capability(9, 0), RULES), DriverReading(Capability(8, 0), RULES)]
    assert {(lost.container, str(lost.device)) for lost in lost_code(stock, emptied, both)} == {
        (0, "8.0"),
        (1, "9.0"),
        (2, "8.0"),
    }


def test_the_images_that_are_used() -> None:
    both, other = concatenated("sm_80 sm_90"), concatenated("sm_80 sm_120")
    (found,) = used_images([Held((both, other))], [DriverReading(Capability(9, 0), RULES)])
    assert found == (both,)


def test_what_is_not_loaded_is_not_used() -> None:
    assert used("9.0", Held(images("sm_90"), loaded=False)) == [""]
