"""The tables that tools/gpu/prove.sh makes, from findings of every completeness."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "gpu" / "report.py"

START = {"import time, s": [4.0, 4.2], "host memory after import (RSS)": [5e8, 5e8]}
STOCK = {"cold": START, "warm": START, "throughput": {"matmul": [1e-3]}, "caches": "drop_caches"}
CUT = {**STOCK, "warm": {"import time, s": [2.0, 2.1], "host memory after import (RSS)": [4e8, 4e8]}}
FOUND: dict[str, Any] = {
    "stock": {"bytes": 5e9, "library_bytes": 4e9, "libraries": {"torch/lib/libtorch_cuda.so": 4.7e8, "small.so": 5}},
    "tailored": {
        "bytes": 2.5e9,
        "library_bytes": 1.5e9,
        "libraries": {"torch/lib/libtorch_cuda.so": 1.4e8},
        "seconds": 11.5,
    },
    "cp_seconds": 9.1,
    "suite_stock": {
        "pass": 614,
        "fail": 1,
        "not-applicable": 2,
        "failed": [["aten/odd", "a bug"]],
        "skipped": [],
        "environment": {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130"},
    },
    "compare_tailored": {
        "summary": "600 identical, 14 close",
        "libraries": {"cufft": {"identical": 40, "close": 1, "differs": 1, "lost": 0}},
        "bad": [["cufft/fft-1", "differs", "other bytes"]],
        "close": ["cudnn/conv2d-benchmark/float32"],
    },
    "measure_stock": STOCK,
    "measure_tailored": CUT,
    "presence": {"wrong": {"outcome": "fail", "reason": "runs none", "seconds": 1.2, "cuda_says": "no kernel image"}},
}


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_report", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_tables(report: ModuleType) -> None:
    text = report.markdown(FOUND)
    for line in (
        "gpu NVIDIA H200, torch 2.11.0+cu130",
        "| tailored | 2,500 | 1,500 | 37.5% | 11.5 |",
        "| torch/lib/libtorch_cuda.so | 470 | 140 |",
        "- stock, `aten/odd`: a bug",
        "- **tailored, `cufft/fft-1` differs**: other bytes",
        "| cufft | 40 | 1 | 1 |",
        "| import time, s | 4.10 | 0.500 ± 0.049 |",
        "| host memory after import (RSS) | 500.00 MB | 0.800 ± 0.000 |",
        "| matmul | 1,000.00 | 1.000 ± 0.000 |",
        "- wrong: **fail** in 1.2 s: runs none",
    ):
        assert line in text
    assert "small.so" not in text


@pytest.mark.parametrize("missing", list(FOUND))
def test_a_stage_that_failed_leaves_the_rest(report: ModuleType, missing: str) -> None:
    assert report.markdown({key: value for key, value in FOUND.items() if key != missing}).startswith("# On the GPU")


def test_nothing_at_all(report: ModuleType) -> None:
    assert "has not been run" in report.markdown({})
