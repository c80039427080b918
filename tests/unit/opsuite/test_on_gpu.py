"""Level 3 as far as it goes without a GPU: whose code runs where, and the lines made of measurements."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import machines
from tests.unit.gpucode.builders import Place, elf
from tests.unit.surgery.test_policy import images
from torchtailor.catalog import Capability, CodeTarget
from torchtailor.code.gpucode.report import ContainerGroup, ImageGroup, LibraryReport
from torchtailor.code.gpucode.scan import Reference
from torchtailor.core.errors import CheckFailedError
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.artifact.launch import Launch
from torchtailor.verification import levels, ongpu
from torchtailor.verification.inspection.torch_code import TorchCode, suitable_gpus
from torchtailor.verification.measures import Figure, Measures
from torchtailor.verification.ongpu import measure_checks, presence_checks, verify_on_gpu
from torchtailor.verification.result import Check, CheckOutcome, Level
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.suite_results import CaseResult, SuiteResults


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
    checks = verify_on_gpu(launch, machines.host("h200-driver-580"), machines.catalog())
    assert [check.outcome for check in checks] == [CheckOutcome.FAIL, CheckOutcome.NOT_APPLICABLE]


def gpu_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Callable[..., dict[str, Measures]]
) -> dict[str, Check]:
    """Level 3 of a torch that passes, against a stock build that cannot be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    launch, against = Launch(Path(sys.executable), (tmp_path,)), Launch(Path("stock"))
    good = SuiteResults(1, {}, None, (CaseResult("aten/a", "aten", "pass"),))
    bad = SuiteResults(1, {}, "the suite could not start: No module named 'sympy'", ())
    monkeypatch.setattr(ongpu, "read_torch", lambda folder: code("sm_90"))
    monkeypatch.setattr(ongpu, "run_suite", lambda ran, device: bad if ran is against else good)
    monkeypatch.setattr(ongpu, "measure", measure)
    checks = verify_on_gpu(launch, machines.host("h200-driver-580"), machines.catalog(), against=against)
    return {check.name: check for check in checks}


def test_a_stock_build_that_does_not_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_proof(tmp_path, monkeypatch, lambda builds, device: dict.fromkeys(builds, measures(2.5, (1e-3,))))
    assert not any(check.failed for check in found.values())
    assert found["as stock"].outcome is CheckOutcome.NOT_APPLICABLE
    assert "No module named 'sympy'" in found["as stock"].reason
    assert found["throughput"].reason == "matmul 1000 us a call"


def test_a_torch_that_cannot_be_measured_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(builds: dict[str, Launch], device: str) -> dict[str, Measures]:
        raise CheckFailedError("torch could not be measured: Aborted.")

    found = gpu_proof(tmp_path, monkeypatch, crash)
    assert found["start and throughput"].outcome is CheckOutcome.FAIL
    assert found["GPU ops (aten)"].outcome is CheckOutcome.PASS


IMPORTED = Check.of(Level.IMPORT, "import torch", True, "torch 2.13.0")
NOT_IMPORTED = Check.not_applicable(Level.IMPORT, "import torch", "torch needs sympy, which is not included")


def levels_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: Check, stock: str = ""
) -> tuple[list[Check], list[Launch | None]]:
    """The checks of levels 2 and 3 of a folder, and the stock builds that were run against."""
    ran: list[Launch | None] = []

    def on_gpu(*_: object, against: Launch | None, **more: object) -> tuple[Check, ...]:
        ran.append(against)
        return (Check.of(Level.GPU, "op suite", True),)

    monkeypatch.setattr(levels, "verify_imports", lambda *_: (imported,))
    monkeypatch.setattr(levels, "verify_on_gpu", on_gpu)
    monkeypatch.setenv("PATH", str(tmp_path))
    built, against = (_torch(tmp_path / "torch", ""), _torch(tmp_path / "stock", stock) if stock else None)
    artifact = open_artifact(built)
    expected = expectation(artifact, machines.catalog())
    other = open_artifact(against) if against else None
    made = levels.running_checks(artifact, expected, machines.catalog(), Level.GPU, stock=other, asked=True)
    return list(made), ran


def _torch(folder: Path, extension: str) -> Path:
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "version.py").touch()
    (folder / "torch" / "lib" / "libc10.so").write_bytes(elf(Place(".text", b"\xc3")))
    if extension:
        (folder / "torch" / extension).write_bytes(elf(Place(".text", b"\xc3")))
    return folder


def test_what_is_not_imported_is_not_run_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, ran = levels_of(tmp_path, monkeypatch, NOT_IMPORTED)
    assert [check.outcome for check in found] == [CheckOutcome.NOT_APPLICABLE] * 2
    assert found[1].level is Level.GPU
    assert "torch needs sympy" in found[1].reason
    assert not ran


def test_a_stock_build_that_cannot_be_started_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extension = f"_C.cpython-399-{platform.machine()}-linux-gnu.so"
    found, ran = levels_of(tmp_path, monkeypatch, IMPORTED, extension)
    assert [(check.name, check.outcome.value) for check in found] == [
        ("import torch", "pass"),
        ("as stock", "not-applicable"),
        ("op suite", "pass"),
    ]
    assert "Python 3.99" in found[1].reason
    assert ran == [None]


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
