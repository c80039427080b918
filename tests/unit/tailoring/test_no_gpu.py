"""`--gpu none`: wheels without GPU code, that need none of NVIDIA's packages."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.calling import call
from tests.tars import unpack_tar
from tests.unit.building.stack import FAT, nvidia, torch
from tests.unit.fetch.packages import Package
from tests.unit.oci.builder import TarFile, read_image, stock, tar_of
from tests.unit.tailoring.helpers import CATALOG, check_records, install, options, tree
from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.core.errors import ImpossibleError, UsageError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.inputs import tailor
from torchtailor.tailoring.restore import restore_environment
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


def unmet(site: Path) -> set[str]:
    """What `pip check` finds."""
    stated = {path.name: list(PathDistribution(path).requires or ()) for path in site.glob("*.dist-info")}
    names = {Requirement(line).name for lines in stated.values() for line in lines if "extra ==" not in line}
    return names - {canonicalize_name(name.partition("-")[0]) for name in stated}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment: the CUDA runtime stays, what only a GPU needs leaves."""
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    shared = {"nvidia/__init__.py": b""}
    cublas, nccl, runtime, *_ = (
        nvidia("nvidia-cublas-cu12", "12.8.4.1"),
        nvidia("nvidia-nccl-cu12", "2.27.3"),
        nvidia("nvidia-cuda-runtime-cu12", "12.8.90"),
    )
    bindings = Package("cuda-bindings", "13.0", ("cuda-pathfinder",), files={"cuda/bindings/x.py": b""})
    own = {"vision/__init__.py": b"", "vision.libs/libnvjpeg.36e1.so.13": FAT, "vision/_C.so": FAT}
    for package in (
        torch(),
        replace(cublas, files={**cublas.files, **shared}),
        nccl,
        replace(runtime, files={**runtime.files, **shared}),
        bindings,
        Package("cuda-pathfinder", "1.9"),
        Package("filelock", "4.2"),
        Package(
            "triton", "3.4.0", files={"triton/__init__.py": b"", "triton/x/y.py": b"", "triton/_C/libtriton.so": FAT}
        ),
        Package("vision", "1.0", ("torch==2.8.0",), files=own),
    ):
        install(written(package, tmp_path), site)
    (site / "triton" / "__pycache__").mkdir()  # uv lists none in RECORD
    (site / "triton" / "__pycache__" / "__init__.cpython-313.pyc").write_bytes(b"compiled")
    compiled = "triton/x/__pycache__/y.cpython-313.pyc"  # pip lists them, without a hash
    (site / compiled).parent.mkdir()
    (site / compiled).write_bytes(b"compiled")
    record = site / "triton-3.4.0.dist-info/RECORD"
    record.write_bytes(f"{compiled},,\r\n".encode() + record.read_bytes())
    return site


LEAVE = ("cuda-bindings", "cuda-pathfinder", "nvidia-cublas-cu12", "nvidia-nccl-cu12", "triton")


def check_without_gpu(site: Path) -> None:
    check_records(site)
    assert not unmet(site)
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if ".torchtailor" not in path.parts}
    assert {
        name for name in names if name.startswith(("triton", "cuda"))
    } == set()  # no folder that Python would import
    assert {name for name in names if name.startswith("nvidia/") and name.endswith(".so.12")} == {
        "nvidia/cuda-runtime/lib/libcuda.so.12"
    }
    assert (site / "nvidia/__init__.py").exists()
    assert not (site / "vision.libs").exists()
    required = [line for line in (site / "torch-2.8.0.dist-info/METADATA").read_text().splitlines() if "Dist" in line]
    assert [line.partition("=")[0] for line in required] == [
        "Requires-Dist: filelock",
        "Requires-Dist: nvidia-cuda-runtime-cu12",
    ]


def test_an_environment(site: Path) -> None:
    before = tree(site)
    trial = tailor_environment(site, options("none", dry_run=True))
    assert tree(site) == before
    result = tailor_environment(site, options("none", keep_removed=True))
    assert result.gone_packages == trial.gone_packages == LEAVE
    assert result.dropped_files == tuple(sorted(trial.dropped_files, key=result.dropped_files.index))
    check_without_gpu(site)
    manifest = json.loads((site / "torch-2.8.0.dist-info/torchtailor.json").read_text())
    assert manifest["target"]["label"] == "nogpu"
    assert len(manifest["changed_requirements"]) == 3
    assert not tailor_environment(site, options("none", keep_removed=True)).differs  # nothing is left to do
    with pytest.raises(ImpossibleError, match="for machines without a GPU"):
        tailor_environment(site, options("9.0"))
    assert not restore_environment(site).commands
    compiled = "triton/__pycache__/__init__.cpython-313.pyc"
    assert tree(site) == before
    assert compiled in before


def test_what_is_said_of_an_environment(site: Path) -> None:
    (site / "triton/x/y.py").write_bytes(b"x" * 900_000)
    record = site / "triton-3.4.0.dist-info/RECORD"
    record.write_text("".join(line for line in record.read_text().splitlines(True) if "y.py" not in line))
    with record.open("a") as file:
        file.write("triton/x/y.py,,\n")
    done = call("tailor", "--env", site, "--gpu", "none", "--keep-removed")
    said = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert f"): {', '.join(LEAVE)}." in said
    assert "No longer required: nvidia-cublas-cu12, nvidia-nccl-cu12, triton." in said
    (freed,) = re.findall(r"is kept \([^)]+\): ([\d.]+) (\w+) of disk were freed", said)
    assert freed[1] == "MB"  # what was left out counts


def test_what_was_not_kept_is_installed_again_by_name(site: Path) -> None:
    tailor_environment(site, options("none"))
    (command,) = restore_environment(site).commands
    assert {f"{name}==" for name in (*LEAVE, "torch")} <= {f"{word.partition('==')[0]}==" for word in command.split()}
    check_without_gpu(site)


def test_a_package_that_another_requires_stays(site: Path, tmp_path: Path) -> None:
    install(written(Package("kernels", "1.0", ("triton>=3",)), tmp_path), site)
    result = tailor_environment(site, options("none"))
    assert "triton" not in result.gone_packages
    assert (site / "triton/x/y.py").exists()
    assert not unmet(site)


def test_one_that_is_installed_again_is_forgotten(site: Path, tmp_path: Path) -> None:
    tailor_environment(site, options("none", keep_removed=True))
    install(written(Package("triton", "3.5.0", files={"triton/__init__.py": b"new"}), tmp_path), site)
    assert "triton/x/y.py" not in restore_environment(site).libraries
    assert not (site / "triton/x").exists()
    assert (site / "triton/__init__.py").read_bytes() == b"new"


def rows(site: Path) -> dict[str, list[str]]:
    return {path.parent.name: sorted(path.read_text().splitlines()) for path in site.glob("*.dist-info/RECORD")}


@pytest.mark.parametrize("at", ["rename", "unlink"])
def test_stopped_in_the_middle(site: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    before, listed = tree(site), rows(site)
    stock, calls = getattr(Path, at), []

    def stopping(path: Path, *args: Any, **more: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return stock(path, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Path, at, stopping)
        with pytest.raises(KeyboardInterrupt):
            tailor_environment(site, options("none", keep_removed=True))
    tailor_environment(site, options("none", keep_removed=True))
    check_without_gpu(site)
    assert not restore_environment(site).commands
    after = tree(site)
    assert {path for path in before if after.get(path) != before[path]} <= {path for path in before if "RECORD" in path}
    assert set(after) == set(before)
    assert rows(site) == listed  # some in another order


def test_a_folder(site: Path, tmp_path: Path) -> None:
    before = tree(site)
    (result,) = tailor(site, gpus="none", output=tmp_path / "out")
    assert tree(site) == before
    assert result.gone_packages == LEAVE
    check_without_gpu(tmp_path / "out")
    manifest = json.loads((tmp_path / "out/torchtailor.json").read_text())
    assert len(manifest["changed_requirements"]) == 3


def test_an_image(site: Path, tmp_path: Path) -> None:
    """Two layers: the packages for a GPU in one, the others and what they compiled in another."""
    place = "usr/lib/python3.13/site-packages"
    layers: tuple[list[TarFile], list[TarFile]] = ([], [])
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site).as_posix()
        file = (
            TarFile(f"{place}/{name}/", mode=0o755) if path.is_dir() else TarFile(f"{place}/{name}", path.read_bytes())
        )
        layers[name.startswith(("torch", "vision", "filelock"))].append(file)
    source = stock(tmp_path / "stock", [tar_of(members) for members in layers])
    report = cut_image(source, f"oci:{tmp_path / 'cut'}:latest", ImageOptions(options("none")))
    (image,) = report.images
    assert image.gone_packages == LEAVE
    assert len(image.changed_requirements) == 3
    cut, written_image = tmp_path / "root", read_image(tmp_path / "cut")
    assert written_image.config["history"][-1]["created_by"] == "torchtailor image --gpu none"
    for layer in written_image.tars:
        unpack_tar(layer, cut)
    check_without_gpu(cut / place)
    manifest = json.loads((cut / place / "torch-2.8.0.dist-info/torchtailor.json").read_text())
    assert manifest["target"]["label"] == "nogpu"
    assert len(manifest["changed_requirements"]) == 3
