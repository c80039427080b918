"""Names and version labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from torchtailor.core.errors import BadInputError
from torchtailor.trees.wheels.metadata import with_tags
from torchtailor.trees.wheels.name import WheelName, labelled_version

TORCH = "torch-2.10.0-3-cp313-cp313-manylinux_2_28_x86_64.whl"


def test_build_tag_is_kept() -> None:
    name = WheelName.parse(Path(TORCH))
    assert (name.version, name.build, name.project) == ("2.10.0", "3", "torch")
    assert str(name) == TORCH
    renamed = str(name.with_version("2.10.0+cu128.sm90"))
    assert renamed == "torch-2.10.0+cu128.sm90-3-cp313-cp313-manylinux_2_28_x86_64.whl"
    project, version, build, _ = parse_wheel_filename(renamed)
    assert (project, version, build) == ("torch", Version("2.10.0+cu128.sm90"), (3, ""))


@pytest.mark.parametrize("bad", ["torch.whl", "torch-2.10.0.zip", "torch-x-py3-none-any.whl", "a b-1-py3-none-any.whl"])
def test_no_wheel_names(bad: str) -> None:
    with pytest.raises(BadInputError):
        WheelName.parse(Path(bad))


@pytest.mark.parametrize(
    ("version", "stock", "earlier", "label", "expected"),
    [
        ("2.10.0", "cu128", "", "sm90", "2.10.0+cu128.sm90"),
        ("2.10.0+cu128", "", "", "sm90", "2.10.0+cu128.sm90"),
        ("13.0.0.19", "", "", "sm80.sm90", "13.0.0.19+sm80.sm90"),
        ("2.10.0+cu128.sm80.sm90", "", "sm80.sm90", "sm90", "2.10.0+cu128.sm90"),
        ("13.0.0.19+sm90", "", "sm90", "sm90", "13.0.0.19+sm90"),
    ],
)
def test_labels(version: str, stock: str, earlier: str, label: str, expected: str) -> None:
    assert labelled_version(version, label, stock_local=stock, earlier_label=earlier) == expected
    assert Version(expected) >= Version(version)


@pytest.mark.parametrize(
    "pin", ["==2.10.0", "~=2.10.0", ">=2.10.0,<2.11", "<=2.10.0", "==2.10.*", "===2.10.0+cu128.sm90"]
)
def test_pins_of_dependants_hold(pin: str) -> None:
    assert SpecifierSet(pin).contains(labelled_version("2.10.0", "sm90", stock_local="cu128"))


def test_the_one_pin_that_does_not_hold() -> None:
    """Documented in docs/tailor.md: an exact pin with a local label means exactly that label."""
    assert not SpecifierSet("==2.10.0+cu128").contains("2.10.0+cu128.sm90")


REQUIREMENTS = [
    Requirement(line)
    for line in (Path(__file__).parent / "data" / "requirements-of-torch.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_pins_of_real_packages_hold(requirement: Requirement) -> None:
    """What torch 2.10, torch 2.15 and cuda-toolkit 13.2 ask for accepts the stock version and the cut one."""
    stock = next(
        specifier.version.removesuffix(".*") for specifier in requirement.specifier if specifier.operator != "<"
    )
    assert requirement.specifier.contains(stock)
    assert requirement.specifier.contains(labelled_version(stock, "sm90"))
    assert requirement.specifier.contains(labelled_version(stock, "sm80.sm90.ptx"))


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("manylinux_2_28_x86_64", "manylinux_2_36_x86_64"),
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_36_x86_64"),
        ("manylinux_2_39_aarch64", "manylinux_2_39_aarch64"),
        ("linux_aarch64", "manylinux_2_36_aarch64"),
        ("any", "manylinux_2_36_aarch64.manylinux_2_36_x86_64"),
        ("musllinux_1_2_x86_64", "musllinux_1_2_x86_64"),
        ("manylinux_2_28_x86_64.musllinux_1_2_x86_64", "manylinux_2_36_x86_64.musllinux_1_2_x86_64"),
    ],
)
def test_tags_of_a_newer_glibc(platform: str, expected: str) -> None:
    name = WheelName.parse(Path(f"a-1.0-cp313-cp313-{platform}.whl"))
    newer = name.for_glibc((2, 36), {"x86_64", "aarch64"})
    assert newer.platform == expected
    assert newer.tags == [f"cp313-cp313-{one}" for one in expected.split(".")]
    assert newer.for_glibc((2, 36), ()) == newer


def test_tags_of_the_wheel_file() -> None:
    stock = b"Wheel-Version: 1.0\nGenerator: x\nTag: cp313-cp313-a\nTag: cp313-cp313-b\nBuild: 3\n"
    assert with_tags(stock, ["cp313-cp313-c"]) == b"Wheel-Version: 1.0\nGenerator: x\nTag: cp313-cp313-c\nBuild: 3\n"
    windows = b"Wheel-Version: 1.0\r\nTag: py3-none-any\r\n"
    assert with_tags(windows, ["a", "b"]) == b"Wheel-Version: 1.0\r\nTag: a\r\nTag: b\r\n"
    with pytest.raises(BadInputError):
        with_tags(b"Wheel-Version: 1.0\n", ["a"])
