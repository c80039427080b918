"""The function behind the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.verification.conftest import HOST
from torchtailor.catalog import Capability
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.core.progress import Progress
from torchtailor.verification.result import Level
from torchtailor.verification.verify import verify


class Recorder(Progress):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.total = self.read = 0

    def begin(self, what: str, total: int) -> None:
        self.seen.append(what)
        self.total += total

    def advance(self, size: int) -> None:
        self.read += size

    def reading(self, library: str) -> None:
        self.seen.append(library)

    def stage(self, what: str) -> None:
        self.seen.append(what)


def test_a_report_with_its_facts(stock: Path) -> None:
    progress = Recorder()
    report = verify(stock, gpus=["sm_80", Capability.parse("9.0")], cpu="avx2", level=Level.STATIC, progress=progress)
    assert report.passed
    assert report.levels == (Level.STATIC,)
    assert report.facts["expected"]["gpus"] == ["8.0", "9.0"]
    assert report.facts["expected"]["from"] == "--gpu"
    assert report.facts["total_seconds"] >= 0
    assert progress.seen[0] == "Reading libraries"
    assert "libtorch_cuda.so" in progress.seen
    assert progress.read == progress.total > 0


def test_all_levels_and_where_the_expectation_is_from() -> None:
    report = verify(HOST / "x86_64" / "startup_base.so", cpu="avx2")
    assert report.levels == tuple(Level)
    assert report.facts["expected"]["from"] == "--cpu"


def test_another_gpu_than_that_of_the_manifest_is_named_as_asked_for(stock: Path, tmp_path: Path) -> None:
    from tests.unit.verification.test_static import tailored

    cut = tailored(stock, "8.0", tmp_path)
    assert verify(cut, level=Level.STATIC).facts["expected"]["from"] == "torchtailor.json"
    report = verify(cut, gpus=["9.0"], level=Level.STATIC)
    assert report.facts["expected"]["from"] == "--gpu"
    assert not report.passed


def test_a_level_that_cannot_be_checked_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asks for the GPU level must not take "not applicable" for a pass."""
    library = HOST / "x86_64" / "startup_base.so"
    report = verify(library, level="gpu")
    assert report.passed
    assert report.not_reached == "a library alone cannot be imported"
    assert verify(library).not_reached == ""
    assert main(["verify", str(library), "--level", "gpu"]) == ExitCode.ENVIRONMENT
    assert "Level gpu could not be checked here: a library alone cannot be imported." in capsys.readouterr().err
    assert main(["verify", str(library)]) == ExitCode.OK
