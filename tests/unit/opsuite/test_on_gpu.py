"""Level 3 as far as it goes without a GPU: whose code runs where, and the lines made of measurements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import machines
from tests.unit.surgery.test_policy import images
from torchtailor.artifact.launch import Launch
from torchtailor.catalog import Capability, CodeTarget
from torchtailor.gpucode.report import ContainerGroup, ImageGroup, LibraryReport
from torchtailor.gpucode.scan import Reference
from torchtailor.inspection.torch_code import TorchCode, suitable_gpus
from torchtailor.verification import ongpu
from torchtailor.verification.measures import Figure, Measures
from torchtailor.verification.ongpu import measure_checks, presence_checks, verify_on_gpu
from torchtailor.verification.result import Check, CheckOutcome


def library(name: str, *codes: str) -> LibraryReport:
    """A library with one container that holds these codes."""
    targets = [CodeTarget.parse(code) for code in codes]
    groups = tuple(ImageGroup(str(code), code, 1, 100, 100, {"zstd": 1}, {".nv_fatbin": 1}) for code in targets)
    container = ContainerGroup(
        section=".nv_fatbin",
        reference=Reference.WRAPPER,
        loaded=True,
        bare=False,
        containers=1,
        stored=100,
        bytes_by_target=dict.fromkeys(targets, 100),
        images=images(" ".join(codes)),
        stored_by_image=(100,) * len(targets),
    )
    return LibraryReport(name, 1000, "x86_64", False, 0, "", groups, (container,) if codes else ())


def code(*codes: str, others: tuple[LibraryReport, ...] = ()) -> TorchCode:
    return TorchCode((library("libtorch_cuda.so", *codes), *others))


def presence(machine: str, held: TorchCode, *wanted: str) -> Check:
    found = presence_checks(machines.host(machine), held, machines.catalog(), tuple(map(Capability.parse, wanted)))
    return found[0]


def test_the_right_gpu() -> None:
    check = presence("h200-driver-580", code("sm_90", "sm_90a"), "9.0")
    assert check.outcome is CheckOutcome.PASS
    assert "NVIDIA H200 (9.0) runs this torch: native" in check.reason


def test_the_wrong_gpu_is_refused_in_words() -> None:
    """A torch cut for 8.0 on an H200: said before CUDA fails, with what would work."""
    check = presence("h200-driver-580", code("sm_80"), "8.0")
    assert check.outcome is CheckOutcome.FAIL
    for words in ("NVIDIA H200 (9.0) runs none", "sm_80", "no kernel image is available", "A100", "--gpu 9.0"):
        assert words in check.reason
    assert check.details["capability"] == "9.0"


def test_a_compatible_gpu_is_not_the_variants_own() -> None:
    check = presence("l40s", code("sm_86"), "8.6")
    assert check.outcome is CheckOutcome.PASS
    assert "compatible through 8.6 (the variant is for 8.6)" in check.reason


def test_code_that_must_be_compiled_first() -> None:
    assert "compiles each kernel" in presence("h200-driver-580", code("compute_80")).reason


def test_libraries_with_nothing_for_the_gpu_are_named() -> None:
    check = presence("h200-driver-580", code("sm_90", others=(library("nvidia/libcufft.so.12", "sm_80"),)))
    assert check.outcome is CheckOutcome.PASS
    assert check.details["libraries_without_code"] == ["nvidia/libcufft.so.12"]
    assert "libcufft.so.12" in check.reason


def test_no_gpu_here() -> None:
    check = presence("zen4", code("sm_90"))
    assert check.outcome is CheckOutcome.NOT_APPLICABLE
    assert check.reason.startswith("No NVIDIA GPU was found; this torch runs on")
    assert "H100" in check.reason


def test_hidden_gpus_are_said_to_be() -> None:
    host = machines.host("h200-driver-580", env={"CUDA_VISIBLE_DEVICES": "-1"})
    check = presence_checks(host, code("sm_90"), machines.catalog())[0]
    assert check.outcome is CheckOutcome.NOT_APPLICABLE
    assert "CUDA_VISIBLE_DEVICES=-1" in check.reason


def test_a_torch_without_cuda() -> None:
    check = presence_checks(machines.host("h200-driver-580"), TorchCode(()), machines.catalog())[0]
    assert check.outcome is CheckOutcome.NOT_APPLICABLE


def test_several_gpus_have_a_line_each() -> None:
    found = presence_checks(machines.host("h100-gtx-1080-ti"), code("sm_90"), machines.catalog())
    assert sorted(check.outcome.value for check in found) == ["fail", "pass"]
    assert len({check.name for check in found}) == 2


def test_suitable_gpus_of_many_codes_are_numbers() -> None:
    codes = [CodeTarget.parse(text) for text in ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")]
    assert suitable_gpus(codes, machines.catalog()).startswith("7.5, 8.0, 8.6, 8.9, 9.0")
    assert suitable_gpus([], machines.catalog()) == "no known GPU"


def test_the_wrong_gpu_stops_before_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(ongpu, "read_torch", lambda folder: code("sm_80"))
    monkeypatch.setattr(ongpu, "run_suite", lambda *_: pytest.fail("the suite was run"))
    launch = Launch(Path(sys.executable), (tmp_path,))
    proof = verify_on_gpu(launch, machines.host("h200-driver-580"), machines.catalog())
    assert [check.outcome for check in proof.checks] == [CheckOutcome.FAIL, CheckOutcome.NOT_APPLICABLE]


def measures(import_seconds: float, matmul: tuple[float, ...]) -> Measures:
    start = {"import time, s": Figure((import_seconds,)), "host memory after import (RSS)": Figure((5e8,))}
    return Measures(start, start, {"matmul": Figure(matmul)}, "drop_caches")


def test_measured_lines() -> None:
    alone = {check.name: check for check in measure_checks(measures(2.5, (1e-3,)), None)}
    assert alone["start, cold"].reason == "import time, s 2.50 s, host memory after import (RSS) 500 MB"
    assert alone["throughput"].reason == "matmul 1000 us a call"
    stock = measures(2.0, (1e-3, 1.02e-3))
    beside = {check.name: check for check in measure_checks(measures(2.5, (1.05e-3,)), stock)}
    assert "import time, s 1.25 x stock" in beside["start, warm"].reason
    assert beside["throughput"].outcome is CheckOutcome.PASS
    slow = {check.name: check for check in measure_checks(measures(2.5, (1.3e-3,)), stock)}
    assert slow["throughput"].outcome is CheckOutcome.PASS  # noise never fails a proof
    assert "slower than the noise explains; for information" in slow["throughput"].reason
    assert slow["throughput"].details["slower"] == ["matmul"]
