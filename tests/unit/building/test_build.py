"""Wheelhouses: complete, reproducible, shared where they can be, and recorded."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.building.conftest import Workshop
from tests.unit.fetch.serving import Fault
from torchtailor.building import cutting
from torchtailor.building.ledger.ledger import Result
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError, UsageError
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.result import TailorResult
from torchtailor.tailoring.wheel import tailor_wheel_each
from torchtailor.verification.inspection.inspect import inspect
from torchtailor.verification.result import Level
from torchtailor.verification.verify import verify
from torchtailor.wheelhouse.wheelhouse import read_manifest, read_wheelhouse
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

NAME = "pytorch28-python313-cuda12_8-sm90-avx512"
TORCH = "torch-2.8.0+cu128.sm90-cp313-cp313-manylinux_2_28_x86_64.whl"


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_wheelhouse_holds_everything_that_is_needed(workshop: Workshop) -> None:
    built = workshop.build("sm90-avx512")
    (house,) = built.wheelhouses
    assert house.path == workshop.out / NAME
    assert house.requirements == ("torch==2.8.0+cu128.sm90",)
    wheels = sorted(path.name for path in (house.path / "wheels").glob("*.whl"))
    assert wheels == [
        "filelock-4.2-py3-none-any.whl",
        "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux2014_x86_64.whl",
        "nvidia_cuda_runtime_cu12-12.8.90-py3-none-manylinux2014_x86_64.whl",
        "nvidia_nccl_cu12-2.27.3+sm90-py3-none-manylinux2014_x86_64.whl",
        TORCH,
        "triton-3.4.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    for name in wheels:
        with zipfile.ZipFile(house.path / "wheels" / name) as archive:
            assert archive.testzip() is None
            (metadata,) = [item for item in archive.namelist() if item.endswith(".dist-info/METADATA")]
            assert (house.path / "wheels" / f"{name}.metadata").read_bytes() == archive.read(metadata)
    assert house.output_bytes < house.input_bytes


def test_index_pages_name_every_wheel_with_its_hash(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512").wheelhouses
    root = json.loads((house.path / "simple" / "index.json").read_text())
    names = [row["name"] for row in root["projects"]]
    assert names == [
        "filelock",
        "nvidia-cublas-cu12",
        "nvidia-cuda-runtime-cu12",
        "nvidia-nccl-cu12",
        "torch",
        "triton",
    ]
    for name in names:
        page = house.path / "simple" / name / "index.json"
        (file,) = json.loads(page.read_text())["files"]
        wheel = (page.parent / file["url"].replace("%2B", "+")).resolve()
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == file["hashes"]["sha256"]
        assert wheel.stat().st_size == file["size"]
        metadata = wheel.with_name(wheel.name + ".metadata").read_bytes()
        assert hashlib.sha256(metadata).hexdigest() == file["core-metadata"]["sha256"]
        html = (page.parent / "index.html").read_text()
        assert f'{file["url"]}#sha256={file["hashes"]["sha256"]}"' in html


def test_the_manifest_tells_inputs_steps_and_sizes_and_no_place_or_time(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512").wheelhouses
    text = (house.path / "manifest.json").read_text()
    manifest = json.loads(text)
    steps = {item["name"]: item for item in manifest["wheels"]}
    assert steps["torch"]["step"] == "cut"
    assert steps["torch"]["libraries"][0]["path"] == "torch/lib/libtorch_cuda.so"
    assert steps["nvidia-cublas-cu12"]["step"] == "unchanged"
    assert "--nvidia" in steps["nvidia-cublas-cu12"]["why"]
    for item in manifest["wheels"]:
        stock = workshop.site.content["/files/" + item["input"]["filename"]]
        assert item["input"]["sha256"] == hashlib.sha256(stock).hexdigest()
        output = (house.path / "wheels" / item["output"]["filename"]).read_bytes()
        assert item["output"] == {
            "filename": item["output"]["filename"],
            "sha256": hashlib.sha256(output).hexdigest(),
            "size": len(output),
        }
    assert str(workshop.root) not in text


def test_only_code_for_the_target_is_left(workshop: Workshop) -> None:
    (house,) = workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True))).wheelhouses
    assert house.changed == 5
    for wheel in (house.path / "wheels").glob("*+*.whl"):
        kept = {group.label for library in inspect(wheel, processes=1).libraries for group in library.architectures}
        assert kept <= {"sm_90", "sm_90a", "compute_90", "lto_90"}, (wheel.name, kept)


def test_the_second_run_downloads_and_cuts_nothing_and_gives_the_same_bytes(workshop: Workshop) -> None:
    first = workshop.build("sm90-avx512")
    before, sent = tree(workshop.out), workshop.site.sent
    torch = workshop.out / NAME / "wheels" / TORCH
    inode = torch.stat().st_ino
    second = workshop.build("sm90-avx512")
    assert first.downloaded > 0 and second.downloaded == 0
    assert workshop.site.sent == sent  # index pages were answered with 304
    assert tree(workshop.out) == before
    assert torch.stat().st_ino == inode


def test_another_cache_and_place_give_the_same_bytes(workshop: Workshop, tmp_path: Path) -> None:
    workshop.build("sm90-avx512")
    before = tree(workshop.out)
    other = Workshop(workshop.site, workshop.catalog, tmp_path / "elsewhere")
    other.build("sm90-avx512")
    assert tree(other.out) == before


def test_offline_after_a_first_run(workshop: Workshop) -> None:
    workshop.build("sm90-avx512")
    before, asked = tree(workshop.out), len(workshop.site.requests)
    assert workshop.build("sm90-avx512", offline=True).downloaded == 0
    assert (tree(workshop.out), len(workshop.site.requests)) == (before, asked)


def test_several_variants_share_files(workshop: Workshop) -> None:
    built = workshop.build("sm80-avx2", "sm90-avx2", "sm90-avx512")
    assert len(built.wheelhouses) == 3
    stock = [house.path / "wheels" / "filelock-4.2-py3-none-any.whl" for house in built.wheelhouses]
    assert len({path.stat().st_ino for path in stock}) == 1
    cut = [next((house.path / "wheels").glob("torch-*.whl")) for house in built.wheelhouses]
    assert len({path.stat().st_ino for path in cut}) == 2  # the two ISAs of sm90 are one file
    fetched = [path for path in workshop.site.content if workshop.site.asked(path) and path.startswith("/files/")]
    whole = [r for r in workshop.site.requests if r.path in fetched and r.status == 200]
    assert len(whole) == 6


def test_several_at_once_give_the_bytes_of_one_at_a_time(workshop: Workshop, tmp_path: Path) -> None:
    names = ("sm80-avx2", "sm86-avx2", "sm89-avx2", "sm90-avx2", "sm120-avx2")
    workshop.build(*names, options=WheelOptions(cut=Cut(nvidia=True)))
    other = Workshop(workshop.site, workshop.catalog, tmp_path / "elsewhere")
    for name in names:
        other.build(name, options=WheelOptions(cut=Cut(nvidia=True)))
    assert tree(other.out) == tree(workshop.out)


def test_the_ledger_has_every_attempt(workshop: Workshop) -> None:
    workshop.build("sm90-avx512")
    workshop.site.always["/files/nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux2014_x86_64.whl"] = Fault(status=404)
    plan = workshop.plan("sm80-avx2")
    for blob in (workshop.root / "cache" / "blobs").glob("*/*/nvidia_cublas*"):
        blob.unlink()
    with pytest.raises(NetworkError, match="404"):
        workshop.run(plan)
    done, failed = workshop.ledger.attempts()
    assert (done.result, done.variant) == (Result.DONE, NAME)
    assert done.input_bytes and done.output_bytes and done.output_bytes < done.input_bytes
    assert (failed.result, failed.error_class, failed.stage) == (Result.FAILED, "StatusError", "fetch")
    assert failed.fix
    assert not (workshop.out / "pytorch28-python313-cuda12_8-sm80-avx2").exists()


def test_a_failed_build_leaves_the_old_wheelhouse(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build("sm90-avx512")
    before = tree(workshop.out)
    from torchtailor.wheelhouse import wheelhouse

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheelhouse, "manifest", fail)
    with pytest.raises(EnvironmentProblem, match="disk is full"):
        workshop.build("sm90-avx512")
    assert tree(workshop.out) == before
    assert not list(workshop.out.glob(".*"))


def test_damaged_results_in_the_cache_are_made_again(workshop: Workshop) -> None:
    workshop.build("sm90-avx512")
    before = tree(workshop.out)
    for made in (workshop.root / "cache" / "made").rglob("torch-*.whl"):
        made.unlink()
    for outcome in (workshop.root / "cache" / "made").rglob("outcome.json"):
        if not list(outcome.parent.glob("*.whl")):
            outcome.write_text("{")
    workshop.build("sm90-avx512")
    assert tree(workshop.out) == before


def test_what_another_build_made_meanwhile_is_taken(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = workshop.root / "cache" / "made"
    first: list[dict[Path, int]] = []

    def after_another_build(*arguments: Any) -> tuple[TailorResult, ...]:
        if not first:
            first.append({})
            workshop.build("sm90-avx512")
            first[0].update({path: path.stat().st_ino for path in made.rglob("*")})
        return tailor_wheel_each(*arguments)

    monkeypatch.setattr(cutting, "tailor_wheel_each", after_another_build)
    workshop.build("sm90-avx512")
    assert first[0] == {path: path.stat().st_ino for path in made.rglob("*")}


def test_what_is_no_wheelhouse(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a wheelhouse"):
        read_wheelhouse(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(BadInputError, match="not a wheelhouse"):
        read_wheelhouse(tmp_path)


def test_a_workload(workshop: Workshop) -> None:
    """What the traces do not name is in packs inside the wheels, and the label of the trace is in their versions."""
    workload = TracedWorkload(Trace(opened=("torch/lib/libtorch_cuda.so",)))
    (house,) = workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True, workload=workload))).wheelhouses
    assert house.requirements == (f"torch==2.8.0+cu128.sm90.{workload.label}",)
    (torch,) = (house.path / "wheels").glob("torch-*.whl")
    with zipfile.ZipFile(torch) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("torchtailor-packs/torch/")]
    assert any(name.endswith(".ttpack") for name in names) and any(name.endswith(".so.1") for name in names)


def test_the_choices_of_a_cut_reach_the_wheels(workshop: Workshop) -> None:
    """Those that a build did not have: each is in the manifest of the wheel, and what it leaves out is not there."""
    cut = Cut(lto=False, strip=False, relr=True, recompress=True, level=3, driver="570.26", drop=("headers",))
    workload = TracedWorkload(Trace(opened=("torch/lib/libtorch_cuda.so",)))
    choices = replace(cut, workload=workload, no_pack=True, drop_unopened=True)
    (house,) = workshop.build("sm90-avx512", options=WheelOptions(cut=choices)).wheelhouses
    (torch,) = (house.path / "wheels").glob("torch-*.whl")
    with zipfile.ZipFile(torch) as wheel:
        names = wheel.namelist()
        (name,) = (name for name in names if name.endswith("/torchtailor.json"))
        document = json.loads(wheel.read(name))
    assert document["policy"] == {
        "nvidia": False,
        "strip": False,
        "lto": False,
        "relr": True,
        "recompress": {"driver": "570.26", "level": 3},
        "drop": ["headers"],
        "drop_unopened": True,
        "workload": {"trace": workload.trace.digest, "margin": "exact", "pack": False},
    }
    assert [file["path"] for file in document["dropped_files"]] == ["torch/share/noise.bin"]
    assert "torch/share/noise.bin" not in names and not any(name.endswith(".ttpack") for name in names)


def test_one_wheelhouse_for_all_gpus_of_a_machine(workshop: Workshop) -> None:
    """One wheel with the code of both; `verify` expects both."""
    (house,) = workshop.build("sm80_90-avx512").wheelhouses
    manifest = read_manifest(house.path)
    assert (manifest.variant, manifest.target.gpu) == ("pytorch28-python313-cuda12_8-sm80_90-avx512", "8.0,9.0")
    assert manifest.index_name == "cu128-sm80_90"
    assert house.requirements == ("torch==2.8.0+cu128.sm80.sm90",)
    (torch,) = (house.path / "wheels").glob("torch-*.whl")
    kept = {group.label for library in inspect(torch, processes=1).libraries for group in library.architectures}
    assert "sm_80" in kept and {"sm_90", "sm_90a"} & kept
    assert {label.rstrip("a")[-2:] for label in kept} == {"80", "90"}
    report = verify(house.path, level=Level.STATIC)
    assert report.facts["expected"]["gpus"] == ["8.0", "9.0"]
    with pytest.raises(UsageError, match="A wheel variant is for one GPU"):
        workshop.build("sm80_90-avx512", options=WheelOptions(variants=True))
