"""What the runner does around the compilers: the configuration that was built, fixes, copies of the source."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.wheels.builder import build_wheel
from torchtailor.advise.host.capacity import Capacity
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source import tree
from torchtailor.building.source.attempt import BuildAttempt, BuildStoppedError, Compiled, Workspace
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.parallel import CompileJobs
from torchtailor.building.source.preflight import CHECKS
from torchtailor.building.source.runner import SourceBuilder
from torchtailor.building.source.tables import Tables
from torchtailor.building.source.tree import SourceTree, copy_tree
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.verification.failures import diagnose

NAME = "pytorch-python313-cpu-avx2"
XNNPACK = b"/s/XNNPACK/src/x.c:1:1: error: unknown type name 'float16x8_t'\nFAILED: confu-deps/XNNPACK/x.o\n"


@pytest.fixture
def builder(
    catalog: Catalog, tables: Tables, variant: Callable[[str], Variant], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SourceBuilder:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    options = SourceOptions(work=tmp_path / "work", verify=False, with_dependencies=False, auto_fix=1, ccache=False)
    request = SourceRequest(variant(NAME), tmp_path / "dist", options=options)
    return SourceBuilder(catalog, request, tables=tables, ledger=Ledger(tmp_path / "ledger.sqlite"))


@pytest.fixture
def workspace(tables: Tables, tmp_path: Path) -> Workspace:
    return Workspace(
        folder=tmp_path / "build",
        tree=SourceTree(tmp_path, "2.99.0", "abc"),
        tables=tables,
        capacity=Capacity(1, 10**9),
        python=Path("python"),
        ninja=Path("ninja"),
        environment=lambda configuration: {},
        ccache=False,
        asked_jobs=1,
        compiler="gcc 14.2.0",
        speed=1.0,
    )


def test_the_manifest_has_the_configuration_that_was_built(
    builder: SourceBuilder, workspace: Workspace, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was computed anew for the manifest, without the BLAS that was found and the fix that was applied."""
    wheel = build_wheel(
        tmp_path, {"torch/x.py": b""}, name="torch", version="2.99.0+cpu.avx2", tag="cp313-cp313-linux_x86_64"
    )
    attempts: list[dict[str, str]] = []

    def attempt(self: BuildAttempt) -> Compiled:
        attempts.append(dict(self.configuration.switches))
        if len(attempts) == 1:
            raise BuildStoppedError("compile", 1, diagnose(io.BytesIO(XNNPACK)), self.log.path, 10.0)
        return Compiled(wheel, 1, 0, None)

    monkeypatch.setattr(BuildAttempt, "run", attempt)
    done = builder.attempts(workspace, builder.configuration(tables.blas_for("x86_64")[0]), builder._finish)
    manifest = json.loads((done.wheelhouses[0].path / "manifest.json").read_bytes())
    assert done.attempts == 2
    assert manifest["configuration"]["BLAS"] == "MKL"
    assert [switches.get("USE_XNNPACK") for switches in attempts] == [attempts[0].get("USE_XNNPACK"), "0"]
    assert attempts[0].get("USE_XNNPACK") != "0"
    assert manifest["configuration"]["USE_XNNPACK"] == "0"


def test_an_attempt_that_ran_out_of_memory_is_repeated_with_fewer_jobs_and_failed_in_the_ledger(
    builder: SourceBuilder, workspace: Workspace
) -> None:
    """Also that of a farm's worker, whose ledger called it done."""

    def work(attempt: BuildAttempt) -> tuple[int, int]:
        attempt.jobs = attempt.jobs or CompileJobs(4, 1, "")
        if attempt.jobs.total > 1:
            raise BuildStoppedError("compile", -9, diagnose(io.BytesIO(b"")), attempt.log.path, 10.0)
        return attempt.number, attempt.jobs.total

    assert builder.attempts(workspace, builder.configuration(), work) == (3, 1)
    assert sorted(row.result.value for row in builder.ledger.attempts()) == ["done", "failed", "failed"]


def test_a_build_without_python_stops_also_where_its_check_is_skipped(
    builder: SourceBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.python = None
    monkeypatch.setattr(builder, "options", replace(builder.options, skip_checks=CHECKS))
    with pytest.raises(EnvironmentProblem, match=r"Python 3\.13 is not installed, and a build needs it") as raised:
        builder.build()
    assert "--python" in raised.value.hint
    assert not builder.ledger.attempts()


def test_the_compiler_that_was_asked_for_is_not_replaced_where_its_check_is_skipped(
    builder: SourceBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(builder, "options", replace(builder.options, skip_checks=CHECKS))
    with pytest.raises(EnvironmentProblem, match="CXX of the environment cannot be used, and no other") as raised:
        builder.build()
    assert "unset it" in raised.value.hint
    assert not builder.ledger.attempts()


def test_starting_over_leaves_nothing_half_deleted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while it deletes, a build continued with a part of the source."""
    (workspace.source / "aten").mkdir(parents=True)
    (workspace.folder / "state.json").write_text("{}")

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtailor.core.disk.remove_locked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workspace.start_over()
    assert not workspace.source.exists()
    assert not (workspace.folder / "state.json").exists()


def test_a_source_that_cannot_be_copied_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """copytree raises one error with a list of tuples; users saw the list."""
    source = tmp_path / "pytorch"
    source.mkdir()
    for name in ("a.cpp", "b.cpp"):
        (source / name).write_text("")

    def full(old: str, new: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), new)

    monkeypatch.setattr(tree, "_copy_file", full)
    with pytest.raises(EnvironmentProblem) as raised:
        copy_tree(source, tmp_path / "copy")
    message = raised.value.message
    assert message.startswith("The source cannot be copied: No space left on device: ")
    assert "[" not in message and "(" not in message
    assert "--work" in raised.value.hint
    assert not (tmp_path / "copy").exists()
    with pytest.raises(EnvironmentProblem, match="cannot be copied: No such file"):
        copy_tree(tmp_path / "nowhere", tmp_path / "copy")
