"""Commands to copy stay in one line, however narrow the window is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from torchtailor.advise import recommendation
from torchtailor.building.wheel.builder import WheelBuildResult
from torchtailor.cli import _build_output, doctor, main
from torchtailor.tailoring.restore import RestoreResult
from torchtailor.verification.doctor.examine import DoctorReport, Problem
from torchtailor.verification.doctor.fixes import Fix
from torchtailor.verification.doctor.symptoms import ProblemKind

LONG = "python -m pip install " + " ".join(f"package{number}==1.{number}.0" for number in range(12))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns shows."""
    file = io.StringIO()
    window = Console(file=file, width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr("torchtailor.cli.ui.out", lambda: window)
    return file


def test_recommend(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recommendation.recommend
    monkeypatch.setattr(
        recommendation, "recommend", lambda *a, **k: replace(real(*a, **k), command=LONG, stock_command=LONG)
    )
    assert main(["recommend", "--gpu", "H100", "--cpu", "zen4", "--driver", "580.65.06"]) == 0
    lines = shown.getvalue().splitlines()
    assert lines[0] == LONG
    assert lines[-1] == f"  {LONG}"
    assert all(len(line) <= 80 for line in lines if LONG not in line)


def test_restore(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    result = RestoreResult(Path("site"), (), 0, ("torch==2.10.0",), (LONG,))
    monkeypatch.setattr("torchtailor.tailoring.restore.restore", lambda *_, **__: (result,))
    main(["restore"])
    assert f"  {LONG}" in shown.getvalue().splitlines()


def test_doctor(shown: io.StringIO) -> None:
    problem = Problem(next(iter(ProblemKind)), "It is wrong.", (Fix("Install another.", LONG),))
    doctor._print(DoctorReport("machine", "torch", (problem,), ()))
    assert f"           {LONG}" in shown.getvalue().splitlines()


def test_an_index_of_variants(shown: io.StringIO) -> None:
    wheelhouse: Any = SimpleNamespace(
        path=Path("dist"), wheels=1, changed=0, input_bytes=1, output_bytes=1, pip_line="", uv_line="",
        torch_version="2.10.0+cu129", requirements=("torch==2.10.0",),
    )  # fmt: skip
    result = WheelBuildResult((wheelhouse,), Path("/a folder with a long name/dist/variants"), 0, 0.0)
    _build_output.show(result.lines())
    assert any("uv pip install" in line and "torch==2.10.0" in line for line in shown.getvalue().splitlines())
