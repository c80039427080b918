"""The op suite and level 2 with a real torch; on the GPU where there is one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from torchtailor.trees.artifact.launch import Launch, op_suite
from torchtailor.verification.compare import CaseVerdict, compare
from torchtailor.verification.imports import run_suite, verify_imports
from torchtailor.verification.result import CheckOutcome

# Runs in the environment with torch: loads the suite's package and evaluates cases made to go wrong.
BAD_CASES = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
suite = importlib.import_module("suite")
suite.load_package()
import torch
names = ("case", "worker", "tolerance")
case, worker, tolerance = (importlib.import_module(f"torchtailor_opsuite.{name}") for name in names)

def evaluated(run, dtype=torch.float32, tolerance=tolerance.Tolerance.NORMAL, **more):
    made = case.Case("aten/bad/float32", "aten", run, dtype, tolerance, **more)
    return worker.evaluate(made, case.SuiteMachine.current("cpu"))

def wrong(site):
    return site.normal(10) * (1.0 if site.reference else 1.001)

def nan(site):
    values = site.normal(10)
    return values if site.reference else torch.where(values > 0, values, float("nan"))

def shape(site):
    return site.normal(10 if site.reference else 11)

def one_bit(site):
    values = site.integers(100, dtype=torch.int32)
    return values if site.reference else values ^ (values == values.max()).int()

def raises(site):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

def refuses(site):
    raise RuntimeError("No available kernel. Aborting execution.")

def without_mkl(site):
    raise RuntimeError("Calling add on a sparse CPU tensor requires compiling PyTorch with MKL.")

counter = iter(range(1000))
def unsteady(site):
    return site.normal(10) + (0 if site.reference else next(counter) * 1e-7)

def inapplicable(site):
    raise case.NotApplicable("there is none")

def constant(site):
    return torch.full((10,), 7, dtype=site.dtype)

def good(site):
    return {"a": [site.normal(3), site.complex_normal(2), 1.5], "b": site.normal(3, 3).to_sparse()}

print(json.dumps({
    "wrong": evaluated(wrong), "nan": evaluated(nan), "shape": evaluated(shape),
    "one_bit": evaluated(one_bit, torch.int32, tolerance.Tolerance.EXACT), "raises": evaluated(raises),
    "unrefused": evaluated(refuses), "refused": evaluated(refuses, refusals=("No available kernel",)),
    "without_mkl": evaluated(without_mkl), "unsteady": evaluated(unsteady), "inapplicable": evaluated(inapplicable),
    "constant_float64": evaluated(constant, torch.float64), "constant_int32": evaluated(constant, torch.int32),
    "wrong_float64": evaluated(wrong, torch.float64),
    "expected_float64": evaluated(constant, torch.float64, reference=lambda site: site.normal(10)),
    "gpu_only": evaluated(wrong, devices=("cuda",)),
    "good": evaluated(good),
}))
"""


@pytest.fixture(scope="module")
def results(torch_launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    script = tmp_path_factory.mktemp("bad") / "bad.py"
    script.write_text(BAD_CASES)
    with op_suite() as folder:
        ran = torch_launch.run([script, folder], timeout=120)
    assert ran.code == 0, ran.errors
    found: dict[str, dict[str, object]] = json.loads(ran.output)
    return found


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("wrong", "fail"),
        ("nan", "fail"),
        ("shape", "fail"),
        ("one_bit", "fail"),
        ("raises", "fail"),
        ("unrefused", "fail"),
        ("refused", "not-applicable"),
        ("without_mkl", "not-applicable"),
        ("inapplicable", "not-applicable"),
        ("gpu_only", "not-applicable"),
        ("constant_float64", "not-applicable"),
        ("constant_int32", "not-applicable"),
        ("wrong_float64", "fail"),
        ("expected_float64", "fail"),
        ("unsteady", "pass"),
        ("good", "pass"),
    ],
)
def test_the_suite_sees_what_is_wrong(results: dict[str, dict[str, object]], name: str, outcome: str) -> None:
    assert results[name]["outcome"] == outcome, results[name]
    assert results[name].get("reason") or outcome == "pass"


def test_determinism_is_seen(results: dict[str, dict[str, object]]) -> None:
    assert results["unsteady"]["deterministic"] is False
    assert results["good"]["deterministic"] is True
    outputs = results["good"]["outputs"]
    assert isinstance(outputs, list)
    assert [row["dtype"] for row in outputs] == ["float32", "complex64", "float64", "int64", "float32"]


def test_two_processes_give_the_same_bytes(torch_launch: Launch) -> None:
    first, second = (run_suite(torch_launch, "cpu", only="cublas/") for _ in range(2))
    assert first.count("fail") == 0, [case for case in first.cases if case.outcome == "fail"]
    comparison = compare([first, first], second)
    assert not comparison.bad
    assert comparison.count(CaseVerdict.IDENTICAL) > 40


@pytest.mark.slow
def test_level_two(torch_launch: Launch, tmp_path: Path) -> None:
    checks = verify_imports(torch_launch)
    assert not [check for check in checks if check.failed]
    passed = sum(check.details.get("passed", 0) for check in checks if check.name.startswith("CPU ops"))
    assert passed >= 380
    assert {check.outcome for check in checks} == {CheckOutcome.PASS, CheckOutcome.NOT_APPLICABLE}


def test_the_registry_covers_every_library(torch_launch: Launch) -> None:
    script = (
        "import sys, json, importlib; sys.path.insert(0, sys.argv[1]); importlib.import_module('suite').load_package();"
        "importlib.import_module('torchtailor_opsuite.cases');"
        "r = importlib.import_module('torchtailor_opsuite.case').REGISTRY;"
        "print(json.dumps([[c.library, 'cpu' in c.devices] for c in r.cases.values()]))"
    )
    with op_suite() as folder:
        rows = json.loads(torch_launch.run(["-c", script, folder], timeout=60).output)
    libraries = Counter(library for library, _ in rows)
    assert len(rows) >= 600
    assert sum(on_cpu for _, on_cpu in rows) >= 500
    for library in ("cublas", "cublaslt", "cudnn", "cufft", "cusolver", "cusparse", "cusparselt", "curand", "nccl"):
        assert libraries[library] >= 5, library
    assert {"aten", "flash-attention", "efficient-attention", "nvrtc", "triton", "cudart"} <= set(libraries)


@pytest.mark.gpu
def test_on_the_gpu(torch_launch: Launch) -> None:
    found = run_suite(torch_launch, "cuda")
    if found.unusable:
        pytest.skip(f"no usable GPU: {found.unusable}")
    assert found.count("pass") >= 500
    assert not [(case.name, case.reason) for case in found.cases if case.outcome == "fail"]
