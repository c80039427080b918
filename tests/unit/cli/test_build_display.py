"""The progress of a build: lines for logs, bars for terminals, nothing when quiet."""

from __future__ import annotations

import sys

import pytest

from torchtailor.cli._progress import BuildDisplay
from torchtailor.core.progress import CompileProgress, NixProgress, Progress, RunningFile


def drive(progress: Progress) -> None:
    """Everything that the three backends report."""
    progress.stage("Fetching 1 wheels")
    progress.expected(100)
    progress.started("torch-2.8.0-py3-none-any.whl", 100, 40)
    progress.advanced("torch-2.8.0-py3-none-any.whl", 20)
    progress.restarted("torch-2.8.0-py3-none-any.whl")
    progress.finished("torch-2.8.0-py3-none-any.whl")
    progress.begin("torch-2.8.0-py3-none-any.whl", 100)
    progress.advance(100)
    progress.stage("Compiling 200 files")
    for done, total in ((1, 100), (2, 200), (19, 200), (21, 200), (22, 200), (61, 200)):
        slowest = (RunningFile("/x/Sort.cu.o", 9.0),)
        progress.compiling(CompileProgress(done, total, 3_000_000_000, slowest, 75.0))
    for phase in ("unpackPhase", "buildPhase", "buildPhase"):
        progress.nix_progress(NixProgress(0, 2, "pytorch", phase, 3, 9))


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildDisplay(quiet=False, plain=True) as display:
        drive(display)
    assert capsys.readouterr().err.splitlines() == [
        "Fetching 1 wheels",
        "  torch-2.8.0-py3-none-any.whl (100 B, 40 B of it cached)",
        "  torch-2.8.0-py3-none-any.whl: restarted",
        "Compiling 200 files",
        "21 of 200 files, 3 GB, about 75 s left; at Sort.cu.o 9 s",
        "61 of 200 files, 3 GB, about 75 s left; at Sort.cu.o 9 s",
        "pytorch unpackPhase",
        "pytorch buildPhase",
    ]


def test_nothing_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildDisplay(quiet=True, plain=False) as display:
        drive(display)
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with BuildDisplay(quiet=False, plain=False) as display:
        assert display._bars is not None
        drive(display)
        (task,) = display._bars.tasks
        assert (task.description, task.completed) == ("pytorch buildPhase 3/9 (build 1 of 2)", 3)
