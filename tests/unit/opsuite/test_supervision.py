"""The op suite's supervisor, with a worker that misbehaves in the ways real ones do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchtailor.opsuite
from torchtailor.verification.suite_results import load_results

SUITE = Path(torchtailor.opsuite.__file__).parent / "suite.py"

# Behaves as each case's name says; the real one's protocol.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path

def main(device, journal_path, containing, done):
    with open(journal_path, "a") as file:
        def write(kind, value):
            file.write(json.dumps({kind: value}) + "\\n"); file.flush()
        plan = json.loads(Path(os.environ["PLAN"]).read_text())
        if "dies" in plan:
            print("ImportError: libcudart.so.13: cannot open", file=sys.stderr); os._exit(3)
        write("environment", {"torch": "2.13.0", "kernel_cache": os.environ.get("USE_PYTORCH_KERNEL_CACHE")})
        if "unusable" in plan:
            write("unusable", "no kernel image is available")
        write("cases", [{"name": n, "library": "aten"} for n in plan if containing in n])
        if "unusable" in plan:
            return 0
        for name in plan:
            if name in done or containing not in name:
                continue
            write("started", name)
            if name.startswith("crash"):
                file.write('{"resu'); file.flush(); os.kill(os.getpid(), signal.SIGSEGV)
            if name.startswith("hang"):
                time.sleep(60)
            outcome = "fail" if name.startswith(("fail", "sticky")) else "pass"
            write("result", {"name": name, "library": "aten", "outcome": outcome, "pid": os.getpid()})
            if name.startswith("sticky"):
                return 75
    return 0
"""


def run(tmp_path: Path, plan: list[str], *options: str) -> tuple[int, dict[str, Any], str]:
    folder = tmp_path / "opsuite"
    folder.mkdir()
    shutil.copy(SUITE, folder)
    (folder / "__init__.py").touch()
    (folder / "worker.py").write_text(WORKER)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    out = tmp_path / "results.json"
    ran = subprocess.run(
        [sys.executable, folder / "suite.py", "--device", "cuda", "--out", out, *options],
        env={"PLAN": str(tmp_path / "plan.json"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    load_results(out)
    return ran.returncode, json.loads(out.read_text()), ran.stderr


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {case["name"]: case["outcome"] for case in document["cases"]}


def test_all_well(tmp_path: Path) -> None:
    code, document, said = run(tmp_path, ["a", "b"])
    assert code == 0
    assert document["counts"] == {"pass": 2, "fail": 0, "not-applicable": 0}
    assert document["environment"]["kernel_cache"] == "0"
    assert document["workers"] == 1
    assert "2 pass" in said


def test_a_crash_costs_one_case(tmp_path: Path) -> None:
    code, document, _ = run(tmp_path, ["a", "crash-1", "b", "crash-2", "c"])
    assert code == 1
    assert outcomes(document) == {"a": "pass", "crash-1": "fail", "b": "pass", "crash-2": "fail", "c": "pass"}
    assert document["workers"] == 3
    assert len(document["crashes"]) == 2
    crash = document["cases"][1]
    assert "SIGSEGV" in crash["reason"]
    assert crash["library"] == "aten"


def test_a_broken_device_needs_a_fresh_process(tmp_path: Path) -> None:
    _, document, _ = run(tmp_path, ["a", "sticky", "b"])
    assert outcomes(document) == {"a": "pass", "sticky": "fail", "b": "pass"}
    pids = [case["pid"] for case in document["cases"]]
    assert pids[0] == pids[1] != pids[2]


def test_a_hanging_case_is_stopped(tmp_path: Path) -> None:
    _, document, _ = run(tmp_path, ["a", "hang", "b"], "--case-timeout", "1.5")
    assert outcomes(document) == {"a": "pass", "hang": "fail", "b": "pass"}
    assert "without an answer" in document["cases"][1]["reason"]


def test_an_unusable_device_fails_everything_once(tmp_path: Path) -> None:
    code, document, _ = run(tmp_path, ["a", "b", "unusable"])
    assert code == 1
    assert document["workers"] == 1
    assert document["unusable"] == "no kernel image is available"
    assert set(outcomes(document).values()) == {"fail"}
    assert "no kernel image" in document["cases"][0]["reason"]


def test_a_torch_that_does_not_import(tmp_path: Path) -> None:
    code, document, _ = run(tmp_path, ["dies"])
    assert code == 1
    assert document["cases"] == []
    assert "libcudart.so.13" in document["unusable"]


def test_only_some_cases(tmp_path: Path) -> None:
    _, document, _ = run(tmp_path, ["fft/a", "blas/a"], "--only", "fft")
    assert list(outcomes(document)) == ["fft/a"]


@pytest.mark.parametrize("options", [(), ("--device", "tpu", "--out", "x")])
def test_wrong_options(options: tuple[str, ...]) -> None:
    ran = subprocess.run([sys.executable, SUITE, *options], capture_output=True, check=False)
    assert ran.returncode == 2


def test_no_module_shadows_the_standard_library() -> None:
    """Run by its path, the suite has its folder first on the path."""
    names = {path.stem for path in SUITE.parent.glob("*.py")} - {"__init__"}
    assert not names & sys.stdlib_module_names
