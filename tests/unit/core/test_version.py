"""The key of the code: every file of the package is part of it, and it is part of the key of every kept result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchtailor.building.cutting import cut_key
from torchtailor.building.farm.fingerprint import describe_worker
from torchtailor.building.source.jobs import (
    CompilePart,
    CompileShard,
    ConfigureSource,
    LinkSource,
    PackSource,
    SourceSpec,
)
from torchtailor.building.wheel_jobs import CutForGpus, PackedWheel, PackVariant, ProveVariant
from torchtailor.catalog import WHEEL, Capability
from torchtailor.code.hostcode import cache as hostcode
from torchtailor.core import version
from torchtailor.core.version import code_key
from torchtailor.surgery.cut import Cut
from torchtailor.wheelhouse.entry import WheelhouseDescription

PACKAGE = Path(version.__file__).parents[1]
SPEC = SourceSpec("sm90-avx512", ("9.0",), "aa", "git", "https://example.org/x.git", "v1", "gcc 14")
WHEELHOUSE = WheelhouseDescription(
    "sm90-avx512", "9.0", "avx512", "x86_64", "2.10.0", "cuda-13_0", "cu130", "3.13", WHEEL
)
FARM_JOBS = (
    CutForGpus("aa", "torch-2.10.0-py3-none-any.whl", ("9.0",), Cut().for_job),
    PackVariant(WHEELHOUSE, (PackedWheel("torch-2.10.0-py3-none-any.whl", 1, "aa"),)),
    ProveVariant("aa", "sm90-avx512", "9.0"),
    ConfigureSource(SPEC),
    CompileShard(SPEC, CompilePart.HOST, 0, 1, "bb"),
    LinkSource(SPEC, ()),
    PackSource(SPEC, "9.0"),
)


@pytest.fixture
def key_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """The key of a copy of the package."""

    def of(package: Path) -> str:
        monkeypatch.setattr(version, "__file__", str(package / "core" / "version.py"))
        code_key.cache_clear()
        hostcode.fingerprint.cache_clear()
        return code_key()

    yield of
    code_key.cache_clear()
    hostcode.fingerprint.cache_clear()


def test_every_file_is_part_of_the_key(tmp_path: Path, key_of: Callable[[Path], str]) -> None:
    edited = 0
    for part in sorted(PACKAGE.iterdir()):
        if part.name == "__pycache__":
            continue
        package = tmp_path / part.name  # of this part alone, so that each reading is short
        package.mkdir()
        if part.is_dir():
            shutil.copytree(part, package / part.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(part, package / part.name)
        files = [path for path in package.rglob("*") if path.is_file()]
        keys = {key_of(package)}
        for path in files:
            with path.open("ab") as file:
                file.write(b"\n")
            keys.add(key_of(package))
        assert len(keys) == len(files) + 1, part
        edited += len(files)
    assert edited > 500


def test_what_is_not_code_is_no_part_of_the_key(tmp_path: Path, key_of: Callable[[Path], str]) -> None:
    (tmp_path / "part" / "__pycache__").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "part" / "a.py").write_text("1")
    before = key_of(tmp_path)
    (tmp_path / "part" / "__pycache__" / "a.pyc").write_text("compiled")
    (tmp_path / "docs" / "page.md").write_text("a page")
    assert key_of(tmp_path) == before
    (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    assert key_of(tmp_path) != before


def test_every_key_changes_with_the_code(tmp_path: Path, key_of: Callable[[Path], str]) -> None:
    def keys() -> list[str]:
        return [
            *(key for job in FARM_JOBS for key in job.gives),
            cut_key("aa", "torch-2.10.0-py3-none-any.whl", (Capability.parse("9.0"),), Cut().for_job),
            hostcode.fingerprint(),
            describe_worker()["torchtailor"],
        ]

    (tmp_path / "a.py").write_text("1")
    key_of(tmp_path)
    before = keys()
    assert keys() == before
    (tmp_path / "a.py").write_text("2")
    key_of(tmp_path)
    assert not set(before) & set(keys())
