"""The benchmark of two builds: how turns become ratios, and what is asked of both builds."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cpu_builds.py"
# Answers like cpu_ops.py: SECONDS of a call, except for a case that this build cannot run. Like pip's scripts it begins
# in the shell: Python's path may have a space.
CHILD = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import json, sys
cases = ["fast/fp32", "crash/fp64", "slow/bf16", "missing/int8"]
print(json.dumps({{"torch": "{version}", "capability": "AVX2", "threads": 2, "cases": cases}}), flush=True)
for line in sys.stdin:
    with open("{log}", "a") as log:
        log.write("{version} " + line)
    name = line.rsplit(" ", 1)[0]
    if name == "crash/fp64" and "{version}" == "2":
        sys.exit(3)
    answer = {{"error": "no engine"}} if name == "missing/int8" and "{version}" == "2" else {{"seconds": {seconds}}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpu_builds", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cpu_builds"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pythons(tmp_path: Path) -> list[Path]:
    made = []
    for version, seconds in (("1", 0.002), ("2", 0.001)):
        path = tmp_path / f"python{version}"
        path.write_text(
            CHILD.format(python=sys.executable, version=version, seconds=seconds, log=tmp_path / "log"), "utf-8"
        )
        path.chmod(0o755)
        made.append(path)
    return made


def test_the_ratio_is_of_turns_not_of_medians(bench: ModuleType) -> None:
    """Where the machine slows down in the middle, both builds of a turn are slow alike."""
    row = bench.Row("softmax/fp32", 1, [1.0, 1.0, 4.0, 8.0], [0.5, 0.5, 2.0, 4.0])
    assert row.ratio == 0.5
    assert row.noise == 0.0
    assert bench.Row("x/fp32", 1, [1.0, 1.0, 1.0], [1.0, 1.2, 1.4]).noise == pytest.approx(0.1)


def test_geometric_means_of_all_of_threads_and_of_types(bench: ModuleType) -> None:
    rows = [
        bench.Row("a/fp32", 1, [1.0], [2.0]),
        bench.Row("a/bf16", 1, [1.0], [0.5]),
        bench.Row("a/fp32", 2, [1.0], [4.0]),
    ]
    means = bench.geometric_means(rows)
    assert means == {
        "all": pytest.approx(1.5874),
        "1 thread": 1.0,
        "fp32": pytest.approx(2.8284),
        "bf16": 0.5,
        "2 threads": 4.0,
    }


def test_both_builds_are_asked_in_turn(bench: ModuleType, pythons: list[Path], tmp_path: Path) -> None:
    found = bench.compare(pythons, re.compile(""), processes=2, turns=2)
    assert (found.first["torch"], found.second["torch"]) == ("1", "2")
    assert {(row.case, row.threads): row.ratio for row in found.measured} == {
        (case, threads): 0.5 for case in ("fast/fp32", "slow/bf16") for threads in (1, 2)
    }
    assert len(found.measured[0].first) == 4
    missing = [row for row in found.rows if not row.measured]
    assert [row.errors for row in missing] == [{"second": "ended with code 3"}, {"second": "no engine"}] * 2
    asked = (tmp_path / "log").read_text("utf-8").splitlines()
    assert asked[:4] == ["1 fast/fp32 1", "2 fast/fp32 1", "2 fast/fp32 1", "1 fast/fp32 1"]


def test_a_case_that_failed_once_is_named(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build that crashes now and then was reported with a clean ratio."""
    about = {"python": "p", "torch": "2", "capability": "AVX2", "threads": 1}
    parts = []
    for number, errors in enumerate(({}, {"second": "ended with code -11"})):
        row = bench.Row("softmax/fp32", 1, [1.0], [1.0], errors)
        parts.append(tmp_path / f"{number}.json")
        parts[-1].write_text(json.dumps(bench.Comparison(about, about, [], [row]).to_json()), "utf-8")
    bench.report(bench.Comparison.read(parts))
    assert (
        "Failed at least once: softmax/fp32 with 1 thread: {'second': 'ended with code -11'}" in capsys.readouterr().out
    )


def test_parts_are_put_together(
    bench: ModuleType, pythons: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[Path] = []
    for number, only in enumerate(("fast", "fast|slow")):
        document: dict[str, Any] = bench.compare(pythons, re.compile(only), processes=1, turns=3).to_json()
        parts.append(tmp_path / f"{number}.json")
        parts[-1].write_text(json.dumps(document), "utf-8")
    found = bench.Comparison.read(parts)
    assert {(row.case, row.threads): len(row.first) for row in found.rows} == {
        ("fast/fp32", 1): 6,
        ("fast/fp32", 2): 6,
        ("slow/bf16", 1): 3,
        ("slow/bf16", 2): 3,
    }
    capsys.readouterr()
    bench.report(found)
    shown = capsys.readouterr().out
    assert "| fast, fp32 | 2.00 ms | 1.00 ms | 0.50 ± 0.00 | 2.00 ms | 1.00 ms | 0.50 ± 0.00 |" in shown
    assert "Geometric means of 4 ratios: all 0.500" in shown
    text = parts[0].read_text("utf-8")
    alone = json.loads(text)
    alone["rows"] = [row for row in alone["rows"] if row["threads"] == 1]
    alone["rows"][0]["case"] = "other/fp32"
    parts[0].write_text(json.dumps(alone), "utf-8")
    bench.report(bench.Comparison.read(parts))
    assert "| other, fp32 | 2.00 ms | 1.00 ms | 0.50 ± 0.00 |  |  |  |" in capsys.readouterr().out
    for key, value in {"torch": "3", "capability": "AVX512"}.items():
        other = json.loads(text)
        other["second"][key] = value
        parts[0].write_text(json.dumps(other), "utf-8")
        with pytest.raises(SystemExit, match="different builds"):
            bench.Comparison.read(parts)
