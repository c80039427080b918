"""Jobs survive a journey as JSON, have stable keys, and give the same bytes on another machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.building.conftest import Workshop
from tests.unit.building.test_build import NAME, tree
from torchtailor.building.cutting import WheelCut
from torchtailor.building.graph.graph import decode_job, encode_job
from torchtailor.building.wheel.graph import wheel_graph
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel_jobs import (
    CutForGpus,
    FetchWheel,
    JobContext,
    PackedWheel,
    PackVariant,
    ProveVariant,
    WheelJob,
    cut_all,
    fetch_all,
    pack,
)
from torchtailor.core.errors import BadInputError, EnvironmentProblem, ImpossibleError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Downloader, Fetched
from torchtailor.fetch.pages import WheelAddress
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.result import TailorResult
from torchtailor.tailoring.wheel import tailor_wheel_each
from torchtailor.wheelhouse.wheelhouse import Wheelhouse


def context(workshop: Workshop, root: Path) -> JobContext:
    finder = workshop.finder()
    cache = Cache(root / "cache")
    return JobContext(workshop.catalog, cache, Downloader(finder.client, cache), root / "dist")


def graph(workshop: Workshop, *names: str, options: WheelOptions | None = None) -> list[WheelJob]:
    """The jobs of a build in an order in which they can run."""
    made = wheel_graph(workshop.plan(*names, options=options))
    kinds = ("fetch", "cut", "pack")
    ordered = sorted(made.jobs.values(), key=lambda job: kinds.index(job.kind))
    return [job.job for job in ordered if isinstance(job.job, WheelJob)]


def run_job(job: WheelJob, here: JobContext) -> tuple[Fetched | WheelCut | Wheelhouse, ...]:
    match job:
        case FetchWheel():
            return tuple(fetch_all([job], here).values())
        case CutForGpus():
            return cut_all(job, here)
        case PackVariant():
            return (pack(job, here),)
        case ProveVariant():
            raise AssertionError


def test_running_decoded_jobs_elsewhere_gives_the_bytes_of_the_build(workshop: Workshop, tmp_path: Path) -> None:
    options = WheelOptions(companions=("torchvision",), cut=Cut(nvidia=True))
    workshop.build("sm80-avx2", "sm90-avx512", options=options)
    jobs = graph(workshop, "sm80-avx2", "sm90-avx512", options=options)
    sent = [encode_job(job) for job in jobs]
    elsewhere = context(workshop, tmp_path / "elsewhere")
    results = [result for data in sent for result in run_job(decode_job(data, WheelJob), elsewhere)]
    assert tree(tmp_path / "elsewhere" / "dist") == tree(workshop.out)
    assert [type(result) for result in results].count(WheelCut) == 12  # six wheels for two GPUs
    assert isinstance(results[-1], Wheelhouse) and results[-1].variant == NAME


def test_a_job_is_the_same_after_a_journey_as_json(workshop: Workshop, tmp_path: Path) -> None:
    jobs = graph(workshop, "sm90-avx512")
    assert {type(job) for job in jobs} == {FetchWheel, CutForGpus, PackVariant}
    for job in jobs:
        data = encode_job(job)
        again = decode_job(data, WheelJob)
        assert again == job
        assert (again.gives, encode_job(again)) == (job.gives, data)
        assert str(tmp_path).encode() not in data


def test_a_key_holds_what_decides_the_bytes_and_nothing_of_the_process() -> None:
    job = CutForGpus("ab" * 32, "torch-2.8.0-cp313-cp313-linux_x86_64.whl", ("9.0",), Cut(nvidia=True).for_job)
    code = (
        "import sys; from torchtailor.building.graph.graph import decode_job; "
        "from torchtailor.building.wheel_jobs import CutForGpus; "
        "print(decode_job(sys.stdin.buffer.read(), CutForGpus).key_for('9.0'))"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=encode_job(job), capture_output=True, check=True,
            env={"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.decode().strip() == job.key_for("9.0")
    others = [
        msgspec.structs.replace(job, source="cd" * 32),
        msgspec.structs.replace(job, filename="torch-2.8.1-cp313-cp313-linux_x86_64.whl"),
        msgspec.structs.replace(job, options=Cut().for_job),
    ]
    assert len({job.key_for("8.0"), *(other.key_for("9.0") for other in (job, *others))}) == 5


def test_a_cut_without_its_wheel_and_what_is_no_job(workshop: Workshop, tmp_path: Path) -> None:
    job = CutForGpus("ab" * 32, "torch-2.8.0-cp313-cp313-linux_x86_64.whl", ("9.0",), Cut().for_job)
    with pytest.raises(EnvironmentProblem, match="is not in the cache"):
        run_job(job, context(workshop, tmp_path))
    for data in (b"{", b"[]", b'{"type": "fly"}', encode_job(job)[:-9]):
        with pytest.raises(BadInputError, match="not a job of torchtailor"):
            decode_job(data, WheelJob)


def test_a_wheel_without_code_for_the_gpu_is_said_and_cut_only_once(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(wheel: Path, *more: Any) -> tuple[TailorResult, ...]:
        asked.append(wheel.name)
        return tailor_wheel_each(wheel, *more)

    monkeypatch.setattr("torchtailor.building.cutting.tailor_wheel_each", counted)
    here = context(workshop, tmp_path)
    filename = "torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    address = WheelAddress(filename, f"{workshop.site.url}/files/{filename}", {})
    (fetched,) = run_job(FetchWheel(address), here)
    assert isinstance(fetched, Fetched)
    packing = graph(workshop, "sm90-avx512")[-1]
    assert isinstance(packing, PackVariant)
    job = msgspec.structs.replace(
        packing,
        description=replace(packing.description, gpu="5.0"),
        wheels=(PackedWheel(filename, 1, address.key, cut=Cut().for_job),),
    )
    for _ in range(2):
        with pytest.raises(ImpossibleError, match=r"none of it runs on 5\.0"):
            run_job(job, here)
    assert asked == [filename]


def test_a_cut_is_found_by_another_context_of_the_same_cache(workshop: Workshop, tmp_path: Path) -> None:
    *fetches, cut, _ = graph(workshop, "sm90-avx512")
    assert isinstance(cut, CutForGpus)

    def run() -> WheelCut:
        here = context(workshop, tmp_path)
        fetch_all([job for job in fetches if isinstance(job, FetchWheel)], here)
        (done,) = cut_all(cut, here)
        return done

    first, second = run(), run()
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.path.parent.parent.parent == tmp_path / "cache" / "made"
    shutil.rmtree(first.path.parent)
    again = run()
    assert (again.sha256, again.from_cache) == (first.sha256, False)
