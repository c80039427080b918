"""The small project, a build environment shared by all tests, and one call that builds."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source.buildenv import make_environment
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.runner import SourceBuild, SourceBuilder
from torchtailor.building.source.tables import load_tables
from torchtailor.catalog import SOURCE, Catalog, load_catalog
from torchtailor.catalog.variants import Matrix, Variant
from torchtailor.core.errors import NetworkError
from torchtailor.core.pythons import find_base_python, running_python

PROJECT = Path(__file__).with_name("project")
HERE = platform.machine()
ISA = {"x86_64": "avx2", "aarch64": "armv8_2"}.get(HERE, "avx2")

Build = Callable[..., SourceBuild]


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(Path("/"))


@pytest.fixture(scope="session")
def variant(catalog: Catalog) -> Variant:
    return Matrix(catalog).resolve(f"cpu-{ISA}", via=SOURCE, python=running_python()).variant


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with the build environment made once; skips where its tools are not available."""
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler here")
    kept = os.environ.get("TORCHTAILOR_TEST_WORK")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("work")
    python = find_base_python(running_python())
    assert python is not None
    try:
        make_environment(Folders(folder, folder), load_tables(), python)
    except NetworkError as error:
        pytest.skip(f"the tools of the build cannot be installed: {error.message}")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, as a user would have it."""
    target = tmp_path / "pytorch"
    shutil.copytree(PROJECT, target)
    for path in target.rglob("*.in"):
        path.rename(path.with_suffix(""))
    return target


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    return Ledger()


def request_for(variant: Variant, project: Path, work: Path, out: Path, **more: Any) -> SourceRequest:
    """Without the checks that only a real PyTorch needs, and without verify: this torch is none."""
    given = {
        "source": str(project),
        "profile": "minimal",
        "jobs": 2,
        "skip_checks": ("blas", "disk", "memory"),
        "bundle": False,  # its own tests say otherwise
        "verify": False,
        "with_dependencies": False,
        "ccache": False,  # what one test compiled must not be there for the next
        **more,
    }
    gpus = given.pop("gpus", ())
    return SourceRequest(variant=variant, out=out, gpus=gpus, options=SourceOptions(work=work, **given))


@pytest.fixture
def build(catalog: Catalog, variant: Variant, project: Path, work: Path, tmp_path: Path, ledger: Ledger) -> Build:
    def run(**more: Any) -> SourceBuild:
        request = request_for(more.pop("variant", variant), project, work, tmp_path / "dist", **more)
        return SourceBuilder(catalog, request, ledger=ledger).build()

    return run


@pytest.fixture
def wrapped_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a shell script before the real compiler; `$REAL "$@"` goes on to it."""

    def wrap(script: str) -> Path:
        folder = tmp_path / "wrapper"
        folder.mkdir(exist_ok=True)
        for name in ("cc", "c++"):
            path = folder / name
            path.write_text(f'#!/bin/bash\nREAL={shutil.which(name)}\nHERE={folder}\n{script}\nexec $REAL "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("CC", str(folder / "cc"))
        monkeypatch.setenv("CXX", str(folder / "c++"))
        return folder

    return wrap
