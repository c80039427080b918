"""Files of GPU code that an output goes without: bitcode for other GPUs, and loose cubins where that was asked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import cubin
from tests.unit.tailoring.helpers import check_records, install, options
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import Capability, load_catalog
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.verify import verify_static

BITCODE = b"BC\xc0\xde" + bytes(3000)
FILES = {
    "x/__init__.py": b"",
    **{f"x/lib/libx_device_sm_{sm}.bc": BITCODE for sm in (75, 80, 89, 90, 100)},
    "x/lib/libdevice.10.bc": BITCODE,
    "x/lib/fake_sm_80.bc": b"text",
    "x/cubins/a_sm90.cubin": cubin("90"),
    "x/cubins/a_sm100.cubin": cubin("100"),
    "x/cubins/a_sm120.cubin": cubin("120"),
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return build_wheel(tmp_path / "in", FILES, name="x", version="1.0", tag="py3-none-any")


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.parametrize(
    ("gpu", "kept"),
    [
        ("9.0", {90}),
        ("8.9", {80, 89}),
        ("8.6", {80}),
        ("10.3", {100}),
        ("12.0", {75, 80, 89, 90, 100}),  # none for it: which of the older ones would be taken is not known
        ("8.0,9.0", {80, 90}),
        ("9.0+PTX", {90, 100}),
        ("7.0", {75, 80, 89, 90, 100}),  # none that works: nothing is better than another
    ],
)
def test_bitcode_for_other_gpus_is_left_out(gpu: str, kept: set[int], wheel: Path, tmp_path: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", options(gpu))
    assert result.output
    gone = {f"x/lib/libx_device_sm_{sm}.bc" for sm in {75, 80, 89, 90, 100} - kept}
    assert names(result.output) == set(FILES) - gone
    assert {file.path for file in result.dropped_files} == gone


def test_cubins_only_where_that_was_asked(wheel: Path, tmp_path: Path) -> None:
    plain = tailor_wheel(wheel, tmp_path / "plain", options("9.0"))
    asked = tailor_wheel(wheel, tmp_path / "asked", options("9.0", drop=("loose-cubins",)))
    assert plain.output
    assert asked.output
    assert names(plain.output) - names(asked.output) == {"x/cubins/a_sm100.cubin", "x/cubins/a_sm120.cubin"}
    none = tailor_wheel(wheel, tmp_path / "none", options("8.0", drop=("loose-cubins",)))
    assert none.output
    assert {name for name in names(none.output) if "cubins" in name} == {name for name in FILES if "cubins" in name}


def test_record_manifest_and_determinism(wheel: Path, tmp_path: Path) -> None:
    made = [
        tailor_wheel(wheel, tmp_path / word, options("9.0", drop=("loose-cubins",))).output for word in ("one", "two")
    ]
    assert made[0]
    assert made[1]
    assert made[0].read_bytes() == made[1].read_bytes()
    site = tmp_path / "site"
    install(made[0], site)
    check_records(site)
    document = json.loads(next(site.glob("*.dist-info/torchtailor.json")).read_text())
    assert document["policy"]["drop"] == ["loose-cubins"]
    rows = {row["path"]: (row["size"], row["rule"], row["code"]) for row in document["dropped_files"]}
    assert rows["x/lib/libx_device_sm_80.bc"] == (len(BITCODE), "foreign-bitcode", "bitcode_80")
    assert rows["x/cubins/a_sm120.cubin"] == (len(cubin("120")), "loose-cubins", "sm_120")


def test_nvidias_stay_without_the_option(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    licence = "LicenseRef-NVIDIA-Proprietary"
    wheel = build_wheel(tmp_path / "in", FILES, name="nvidia-x-cu13", licence=licence)
    assert tailor_wheel(wheel, tmp_path / "out", options("9.0")).dropped_files == ()
    assert len(tailor_wheel(wheel, tmp_path / "with", options("9.0", nvidia=True)).dropped_files) == 4


def test_a_folder(wheel: Path, tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    install(wheel, site)
    result = tailor_folder(site, out, options("9.0", drop=("loose-cubins",)))
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.bc")} == {n for n in FILES if n.endswith(".bc")}
    assert sorted(path.name for path in out.rglob("*.cubin")) == ["a_sm90.cubin"]
    assert result.size_before - result.size_after == sum(file.size for file in result.dropped_files) > 0
    check_records(out)
    assert len(json.loads((out / "torchtailor.json").read_text())["dropped_files"]) == 6


def test_a_dry_run_says_the_same(wheel: Path, tmp_path: Path) -> None:
    told = tailor_wheel(wheel, tmp_path / "told", options("9.0", dry_run=True))
    done = tailor_wheel(wheel, tmp_path / "done", options("9.0"))
    assert told.dropped_files == done.dropped_files
    assert not (tmp_path / "told").exists()


def test_verify_says_what_is_left(wheel: Path, tmp_path: Path) -> None:
    catalog = load_catalog()
    for more, words in (({}, ["files of sm_120", "files of sm_100"]), ({"drop": ("loose-cubins",)}, [])):
        made = tailor_wheel(wheel, tmp_path / f"out{len(more)}", options("9.0", **more)).output
        assert made
        artifact = open_artifact(made)
        expected = expectation(artifact, catalog, gpus=[Capability.parse("9.0")])
        checks = verify_static(artifact, expected, catalog).checks
        assert not [check.name for check in checks if check.failed]
        (check,) = [check for check in checks if check.name == "GPU code: nothing foreign"]
        assert [word for word in ("files of sm_120", "files of sm_100") if word in check.reason] == words
