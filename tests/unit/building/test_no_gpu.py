"""Builds for machines without a GPU: a CPU build where an index has one, else a CUDA build without its GPU code."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.unit.building.conftest import Workshop
from tests.unit.building.stack import TORCH_TAG, torch
from tests.unit.fetch.packages import Package, html_index
from torchtailor.building.choose import choose
from torchtailor.building.graph.graph import decode_job, encode_job
from torchtailor.building.wheel.graph import pack_of, wheel_graph
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import Treatment, VariantPlan
from torchtailor.building.wheel_jobs import PackVariant
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import NetworkError, NoMatchError, UsageError
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.surgery.cut import Cut

CPU = Package("torch", "2.8.0+cpu", ("filelock",), TORCH_TAG, files={"torch/lib/libtorch_cpu.so": b"no library"})


def serve(workshop: Workshop, *packages: Package) -> None:
    """These, and of other projects what the stack has."""
    workshop.site.content = {
        path: data for path, data in workshop.site.content.items() if not re.search(r"/torch[-/]", path)
    }
    workshop.site.content |= html_index(packages)


def planned(workshop: Workshop, options: WheelOptions | None = None, release: str | None = None) -> VariantPlan:
    """The plan of a variant for the CPU, with the configured index alone."""
    choices = choose(workshop.catalog, ["cpu-avx2"], release=release, python="3.13")
    plan = workshop.backend(options, explicit_index=True).plan(choices, workshop.out)
    return plan.plans[0]


def test_a_cpu_build_comes_first(workshop: Workshop) -> None:
    serve(workshop, torch(), CPU)
    plan = planned(workshop, release="2.8")
    assert (plan.label, plan.without_gpu, plan.cut_for) == ("cpu", False, None)
    assert {wheel.treatment for wheel in plan.wheels} == {Treatment.UNCHANGED}


def test_a_cpu_build_of_an_older_release_comes_before_a_cuda_build(workshop: Workshop) -> None:
    serve(workshop, replace(torch(), version="2.15.0"), CPU)
    plan = planned(workshop)
    assert (str(plan.torch.file.version), plan.without_gpu) == ("2.8.0+cpu", False)
    assert "is not available" in plan.notes[1]


def test_else_the_newest_cuda_build(workshop: Workshop) -> None:
    serve(workshop, torch(), replace(torch(), version="2.15.0"), replace(torch(), version="2.15.0+cu130"))
    plan = planned(workshop)
    assert str(plan.torch.file.version) == "2.15.0"
    assert plan.cut_for == "none"
    assert {wheel.name: wheel.treatment.value for wheel in plan.wheels} == {
        "filelock": "unchanged",
        "nvidia-cuda-runtime-cu12": "unchanged",
        "torch": "cut",
    }
    assert plan.notes[-1] == (
        "No index that answered has a CPU build of PyTorch 2.15.0 for Python 3.13 on x86_64: the CUDA 12.8 build is "
        "taken without its GPU code and without NVIDIA's packages except the CUDA runtime."
    )
    assert plan.document.without_gpu is True
    assert plan.output_size < plan.torch.size


def test_nothing_fits(workshop: Workshop) -> None:
    serve(workshop, torch(arch="riscv64"))
    with pytest.raises(NoMatchError) as caught:
        planned(workshop)
    assert "do not have PyTorch 2.15.0 for Python 3.13 on x86_64." in caught.value.message
    assert "There is no CUDA build either" in caught.value.message
    assert "nor any build of PyTorch 2.14" in caught.value.message


def test_what_could_not_be_looked_up_is_not_called_missing(workshop: Workshop) -> None:
    gone = IndexLocation("http://127.0.0.1:9/simple", LocationKind.INDEX, "test")
    choices = choose(workshop.catalog, ["cpu-avx2"], python="3.13")
    with pytest.raises(NetworkError) as caught:
        workshop.backend(explicit_index=True, sources=(gone,), retries=0).plan(choices, workshop.out)
    assert "no CUDA build" not in caught.value.message


def test_on_demand_even_where_there_is_a_cpu_build(workshop: Workshop) -> None:
    serve(workshop, torch(), CPU)
    options = WheelOptions(without_gpu=True)
    plan = planned(workshop, options, release="2.8")
    assert plan.cut_for == "none"
    assert plan.notes[-1].startswith(f"{CPU.filename} is used without --gpu none: the CUDA 12.8 build is taken")
    with pytest.raises(UsageError, match="for variants of the CPU"):
        workshop.plan("sm90-avx512", options=options)
    for cut in (Cut(split=True), Cut(Targets((), keep_ptx=True))):
        with pytest.raises(UsageError, match=r"cannot be combined with --(split|keep-ptx)"):
            planned(workshop, WheelOptions(without_gpu=True, cut=cut), release="2.8")


def test_build(workshop: Workshop) -> None:
    """What is built and packed, together with the same wheel for a GPU, which is cut by other options."""
    choices = choose(workshop.catalog, ["cpu-avx2", "sm90-avx512"], release="2.8", python="3.13")
    backend = workshop.backend(WheelOptions(cut=Cut(Targets((), keep_ptx=True))), explicit_index=True)
    plan = backend.plan(choices, workshop.out)
    result = workshop.run(plan)
    cpu, gpu = result.wheelhouses
    assert sorted(path.name for path in cpu.path.glob("wheels/*.whl")) == [
        "filelock-4.2-py3-none-any.whl",
        "nvidia_cuda_runtime_cu12-12.8.90-py3-none-manylinux2014_x86_64.whl",
        "torch-2.8.0+cu128.nogpu-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    assert any("sm90" in path.name for path in gpu.path.glob("wheels/*.whl"))
    manifest = json.loads((cpu.path / "manifest.json").read_text())
    assert manifest["without_gpu"] is True
    again = workshop.run(backend.plan(choices, workshop.out))
    assert again.downloaded == 0


def test_jobs_of_farms(workshop: Workshop) -> None:
    """The keys of jobs are known before anything is fetched, and survive being sent."""
    choices = choose(workshop.catalog, ["cpu-avx2", "sm90-avx512"], release="2.8", python="3.13")
    plan = workshop.backend(WheelOptions(cut=Cut(Targets((), keep_ptx=True))), explicit_index=True).plan(
        choices, workshop.out
    )
    labels = [job.label for job in wheel_graph(plan).jobs.values()]
    assert "cut torch for none" in labels
    assert "cut torch for 9.0" in labels
    for variant in plan.plans:
        pack = pack_of(plan, variant)
        cuts = [cut for wheel in pack.wheels if (cut := pack.cut_of(wheel))]
        assert {cut.gpus for cut in cuts} == {(variant.cut_for,)}
        assert decode_job(encode_job(pack), PackVariant) == pack
