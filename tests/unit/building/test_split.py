"""`build --split`: a wheel without GPU code for all GPUs, a wheel of packs for each, and what requires them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.unit.building.conftest import Workshop
from tests.unit.building.stack import torch
from tests.unit.fetch.packages import Package, html_index
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import UsageError
from torchtailor.surgery.cut import Cut
from torchtailor.verification.inspection.inspect import inspect

SPLIT = WheelOptions(cut=Cut(split=True))
HOST = "torch-2.8.0+cu128.host-cp313-cp313-manylinux_2_28_x86_64.whl"


def wheels(house: Path) -> dict[str, Path]:
    """The wheels of a wheelhouse by their project."""
    return {path.name.split("-")[0]: path for path in sorted((house / "wheels").glob("*.whl"))}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_host_wheel_is_the_same_for_all_gpus(workshop: Workshop) -> None:
    first, second = (house.path for house in workshop.build("sm{80,90}-avx512", options=SPLIT).wheelhouses)
    assert wheels(first)["torch"].name == wheels(second)["torch"].name == HOST
    assert sha256(wheels(first)["torch"]) == sha256(wheels(second)["torch"])
    assert wheels(first)["torch"].stat().st_ino == wheels(second)["torch"].stat().st_ino
    assert "torch_gpu_sm80" in wheels(first)
    assert "torch_gpu_sm90" in wheels(second)
    assert not any(library.architectures for library in inspect(wheels(first)["torch"], processes=1).libraries)


def test_alone_it_is_the_same_as_with_others(workshop: Workshop, tmp_path: Path) -> None:
    _, both = workshop.build("sm{80,90}-avx512", options=SPLIT).wheelhouses
    other = Workshop(workshop.site, workshop.catalog, tmp_path / "other")
    (alone,) = other.build("sm90-avx512", options=SPLIT).wheelhouses
    assert {name: sha256(path) for name, path in wheels(both.path).items()} == {
        name: sha256(path) for name, path in wheels(alone.path).items()
    }


def test_a_pack_holds_the_code_of_its_gpu_alone(workshop: Workshop) -> None:
    from torchtailor.workload.pack import open_pack

    for house in workshop.build("sm{80,90}-avx512", options=SPLIT).wheelhouses:
        sm = house.variant.split("-")[-2].removeprefix("sm")
        with zipfile.ZipFile(wheels(house.path)[f"torch_gpu_sm{sm}"]) as archive:
            (name,) = [one for one in archive.namelist() if one.endswith(".ttpack")]
            assert name.startswith(f"torchtailor-packs/torch_gpu_sm{sm}/libtorch_cuda.so-")
            archive.extract(name, workshop.root)
        with open_pack(workshop.root / name) as pack:
            labels = {image.label for row in pack.rows for image in pack.container(row).entries}
        assert labels <= {f"sm_{sm}", f"sm_{sm}a", f"lto_{sm}", "lto_80", "lto_75"}
        assert f"sm_{sm}" in {label.removesuffix("a") for label in labels}


def test_extras_of_the_host_wheel(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(split=True, nvidia=True))).wheelhouses
    assert house.requirements == ("torch[sm90]==2.8.0+cu128.host",)
    assert house.pip_line.endswith(" 'torch[sm90]==2.8.0+cu128.host'")  # a shell must not take it for a glob
    pack = wheels(house.path)["torch_gpu_sm90"].name.split("-")[1]
    with zipfile.ZipFile(wheels(house.path)["torch"]) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
        assert archive.read("torchtailor-packs/torch/split.txt").decode().splitlines() == [
            "torch",
            "2.8.0+cu128.host",
            "libtorch_cuda.so",
        ]
    extras = metadata.get_all("Provides-Extra")
    assert extras is not None and {"sm80", "sm90", "sm120", "gpu"} <= set(extras)
    required = metadata.get_all("Requires-Dist") or []
    assert f'torch-gpu-sm90=={pack}; extra == "sm90"' in required
    assert 'nvidia-cublas-cu12[sm90]; extra == "sm90"' in required
    assert not any("sm90" in line and "extra" not in line for line in required)


@pytest.mark.parametrize("nvidia", [False, True])
def test_pip_installs_a_split_torch_with_its_packs(workshop: Workshop, nvidia: bool, tmp_path: Path) -> None:
    options = WheelOptions(cut=Cut(split=True, nvidia=nvidia))
    (house,) = workshop.build("sm90-avx512", options=options).wheelhouses
    line = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--isolated", "--quiet"]
    line += ["--python-version", "3.13", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]
    line += ["--only-binary=:all:", "--target", str(tmp_path / "t"), "--report", str(tmp_path / "report.json")]
    done = subprocess.run(
        [*line, "--index-url", house.index_url, *house.requirements], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr
    found = json.loads((tmp_path / "report.json").read_text())["install"]
    names = {row["metadata"]["name"] for row in found}
    assert {"torch", "torch-gpu-sm90"} <= names
    assert ("nvidia-cublas-cu12-gpu-sm90" in names) is nvidia


def test_packs_are_shared_by_pythons_with_the_same_code(workshop: Workshop, tmp_path: Path) -> None:
    (house,) = workshop.build("sm90-avx512", options=SPLIT).wheelhouses
    triton = Package("triton", "3.4.0", (), "cp312-cp312-manylinux_2_28_x86_64", files={"triton/__init__.py": b""})
    workshop.site.content |= html_index([torch("cp312"), triton])
    other = Workshop(workshop.site, workshop.catalog, tmp_path / "other")
    from torchtailor.building.choose import choose

    choices = choose(other.catalog, ["sm90-avx512"], release="main", python="3.12")
    backend = other.backend(SPLIT)
    (second,) = other.run(backend.plan(choices, other.out)).wheelhouses
    one, two = wheels(house.path), wheels(second.path)
    assert one["torch"].name != two["torch"].name
    assert one["torch_gpu_sm90"].name == two["torch_gpu_sm90"].name
    assert sha256(one["torch_gpu_sm90"]) == sha256(two["torch_gpu_sm90"])


def test_the_manifest_counts_stock_once(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512", options=SPLIT).wheelhouses
    manifest = json.loads((house.path / "manifest.json").read_text())
    steps = {row["name"]: row for row in manifest["wheels"]}
    assert (steps["torch"]["step"], steps["torch-gpu-sm90"]["step"]) == ("cut", "packs")
    assert steps["torch-gpu-sm90"]["required_by"] == ["torch[sm90]"]
    assert manifest["totals"]["input_bytes"] == sum(
        row["input"]["size"] for row in manifest["wheels"] if "input" in row
    )
    assert manifest["options"]["split"] is True


def test_the_second_run_cuts_nothing(workshop: Workshop) -> None:
    before = workshop.build("sm90-avx512", options=SPLIT)
    assert not workshop.build("sm90-avx512", options=SPLIT).downloaded
    assert before.wheelhouses[0].output_bytes


def test_what_does_not_go_with_it(workshop: Workshop) -> None:
    for more in ({"recompress": True}, {"targets": Targets((), keep_ptx=True)}):
        with pytest.raises(UsageError, match="--split"):
            WheelOptions(cut=Cut(split=True, **more))


def failed(artifact: Path, stock: Path | None = None, gpu: str = "") -> dict[str, str]:
    """The checks of level 1 that a wheelhouse fails, with their reasons."""
    from torchtailor.catalog import Capability, load_catalog
    from torchtailor.trees.artifact.artifact import open_artifact
    from torchtailor.verification.result import CheckOutcome
    from torchtailor.verification.static.expect import expectation
    from torchtailor.verification.static.verify import verify_static

    opened, catalog = open_artifact(artifact), load_catalog()
    before = open_artifact(stock) if stock else None
    proof = verify_static(
        opened, expectation(opened, catalog, gpus=[Capability.parse(gpu)] if gpu else []), catalog, stock=before
    )
    return {check.name: check.reason for check in proof.checks if check.outcome is CheckOutcome.FAIL}


def stock_wheels(workshop: Workshop, house: Path) -> Path:
    """The wheels that a wheelhouse was made of."""
    folder = workshop.root / "stock"
    folder.mkdir(exist_ok=True)
    for row in json.loads((house / "manifest.json").read_text())["wheels"]:
        if "input" in row:
            name = row["input"]["filename"]
            (folder / name).write_bytes(workshop.site.content[f"/files/{name}"])
    return folder


def test_verify_finds_all_of_stock_in_both_wheels(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(split=True, nvidia=True))).wheelhouses
    found = failed(house.path, stock_wheels(workshop, house.path))
    assert not {name for name in found if "coverage" in name or "GPU" in name or "pack" in name or "hook" in name}, (
        found
    )


def test_verify_misses_a_pack_wheel_that_is_not_there(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512", options=SPLIT).wheelhouses
    stock = stock_wheels(workshop, house.path)
    folder = workshop.root / "copied"
    folder.mkdir()
    for name, path in wheels(house.path).items():
        if "_gpu_" not in name:  # code that is the same may be in the packs of another distribution
            (folder / path.name).write_bytes(path.read_bytes())
    for before in (stock, None):
        found = failed(folder, before, "9.0")
        assert "verify the wheels of both together" in found["packs"]
        assert "install those of the extra sm90" in found["GPU code for sm90: libtorch_cuda.so"]


def test_verify_misses_code_that_a_pack_wheel_lacks(workshop: Workshop) -> None:
    """Packs for another GPU than the one that is asked for are not enough."""
    first, second = (house.path for house in workshop.build("sm{80,90}-avx512", options=SPLIT).wheelhouses)
    stock = stock_wheels(workshop, second)
    folder = workshop.root / "mixed"
    folder.mkdir()
    for name, path in wheels(second).items():
        if "_gpu_" not in name:  # code that is the same may be in the packs of another distribution
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / wheels(first)["torch_gpu_sm80"].name).write_bytes(wheels(first)["torch_gpu_sm80"].read_bytes())
    from torchtailor.catalog import Capability, load_catalog
    from torchtailor.trees.artifact.artifact import open_artifact
    from torchtailor.verification.result import CheckOutcome
    from torchtailor.verification.static.expect import expectation
    from torchtailor.verification.static.verify import verify_static

    opened, catalog = open_artifact(folder), load_catalog()
    expected = expectation(opened, catalog, gpus=(Capability.parse("9.0"),))
    proof = verify_static(opened, expected, catalog, stock=open_artifact(stock))
    assert any("coverage" in check.name and check.outcome is CheckOutcome.FAIL for check in proof.checks)


def test_verify_without_stock_and_its_report(workshop: Workshop) -> None:
    from torchtailor.catalog import load_catalog
    from torchtailor.trees.artifact.artifact import open_artifact
    from torchtailor.verification.report.page import render
    from torchtailor.verification.result import VerifyReport
    from torchtailor.verification.static.expect import expectation
    from torchtailor.verification.static.verify import verify_static

    (house,) = workshop.build("sm90-avx512", options=SPLIT).wheelhouses
    opened, catalog = open_artifact(house.path), load_catalog()
    proof = verify_static(opened, expectation(opened, catalog), catalog)
    row = next(one for one in proof.facts["packs"] if one["name"].endswith("libtorch_cuda.so"))
    assert row["stays"] == 0 and row["in_packs"] > 0 and not row["missing"]
    page = render(VerifyReport(str(house.path), proof.checks, proof.facts))
    assert 'id="packs"' in page and "torch/lib/libtorch_cuda.so" in page.partition('id="packs"')[2]
