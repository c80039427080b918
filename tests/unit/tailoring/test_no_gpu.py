"""`--gpu none`: wheels without GPU code, that need none of NVIDIA's packages."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.unit.building.stack import FAT, nvidia, torch
from tests.unit.fetch.packages import Package
from tests.unit.tailoring.helpers import CATALOG, check_records, install, options
from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.core.errors import UsageError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.inputs import tailor, tailor_inputs
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.verify import verify_static


def written(package: Package, folder: Path) -> Path:
    wheel = folder / package.filename
    wheel.write_bytes(package.wheel())
    return wheel


def test_all_code_of_a_library_leaves(tmp_path: Path) -> None:
    stock, cut = tmp_path / "libx.so", tmp_path / "out" / "libx.so"
    stock.write_bytes(FAT)
    result = tailor_library(stock, cut, options("none"))
    assert result.status is LibraryStatus.CUT
    assert not result.kept
    assert sum(tally.images for tally in result.dropped.values()) == len(list(scan_file(stock).images))
    assert summarise("libx.so", scan_file(cut)).architectures == ()
    again = tailor_library(cut, tmp_path / "again.so", options("none"))
    assert again.status is LibraryStatus.UNCHANGED


def test_a_wheel(tmp_path: Path) -> None:
    wheel = written(torch(), tmp_path)
    (result,) = tailor(wheel, gpus="none", output=tmp_path / "out")
    assert result.output is not None
    assert result.output.name == "torch-2.8.0+cu128.nogpu-cp313-cp313-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(result.output) as archive:
        info = "torch-2.8.0+cu128.nogpu.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        manifest = json.loads(archive.read(f"{info}/torchtailor.json"))
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert len(required) == 2
    assert required[0] == "Requires-Dist: filelock"
    assert required[1].startswith("Requires-Dist: nvidia-cuda-runtime-cu12==12.8.90")
    assert manifest["target"] == {"gpus": [], "archs": [], "keep_ptx": False, "label": "nogpu"}
    assert len(manifest["changed_requirements"]) == 3
    assert set(manifest["changed_requirements"].values()) == {None}
    install(result.output, tmp_path / "site")
    check_records(tmp_path / "site")
    artifact, stock = open_artifact(result.output), open_artifact(wheel)
    catalog = load_catalog()
    checks = verify_static(artifact, expectation(artifact, catalog), catalog, stock=stock).checks
    assert not [check for check in checks if check.failed]
    said = {check.name: check.reason for check in checks}
    assert said["GPU code: nothing foreign"] == "1 library was cut for machines without a GPU; no GPU code is left"


def test_packages_for_a_gpu_are_left_out_and_others_copied(tmp_path: Path) -> None:
    packages = [nvidia("nvidia-cublas-cu12", "12.8.4.1"), Package("filelock", "4.2")]
    wheels = [written(package, tmp_path) for package in packages]
    cublas, filelock = tailor(*wheels, gpus="none", output=tmp_path / "out")
    assert cublas.not_needed
    assert cublas.output is None
    assert filelock.output is not None
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["filelock-4.2-py3-none-any.whl"]


def test_a_package_that_only_requires_nvidias_is_written_anew(tmp_path: Path) -> None:
    (result,) = tailor(
        written(Package("meta", "1.0", ("nvidia-nccl-cu13", "numpy")), tmp_path), gpus="none", output=tmp_path / "out"
    )
    assert result.output is not None
    assert result.output.name == "meta-1.0+nogpu-py3-none-any.whl"
    with zipfile.ZipFile(result.output) as archive:
        metadata = archive.read("meta-1.0+nogpu.dist-info/METADATA").decode()
    assert "numpy" in metadata
    assert "nccl" not in metadata


def test_what_does_not_go_with_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be combined with other GPUs or --keep-ptx"):
        read_targets(["9.0,none"], CATALOG, {})
    with pytest.raises(UsageError, match="cannot be combined with other GPUs or --keep-ptx"):
        read_targets(["none"], CATALOG, {}, keep_ptx=True)
    with pytest.raises(UsageError, match="cannot be combined with --split"):
        tailor(tmp_path, gpus="none", split=True)
    with pytest.raises(UsageError, match="not cut in place"):
        tailor_inputs((), options("none"), env=tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "libx.so").write_bytes(FAT)
    with pytest.raises(UsageError, match="for wheels and libraries"):
        tailor(tmp_path / "folder", gpus="none", output=tmp_path / "out")


def test_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--gpu none is for wheels"):
        cut_image(f"oci:{tmp_path / 'in'}", f"oci:{tmp_path / 'out'}", ImageOptions(options("none")))
