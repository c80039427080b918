"""--workload for each kind of input: the libraries, their packs, the hook, RECORD, and the way back."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.core.errors import ImpossibleError, UsageError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_file, tailor_folder
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.static.packed import packs_of
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.trace import Trace, TracedLibrary

TRACE = Trace(opened=("torch/lib/libtorch_cuda.so",))


def chosen(**more: object) -> Cut:
    return replace(options(), **{"workload": TracedWorkload(TRACE), **more})  # type: ignore[arg-type]


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    content = {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fat, "torch/include/a.h": b"// a"}
    return build_wheel(tmp_path, content, name="torch", version="2.10.0")


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    return site


def test_a_library(tmp_path: Path, fat: bytes) -> None:
    (tmp_path / "libx.so").write_bytes(fat)
    result = tailor_file(tmp_path / "libx.so", tmp_path / "out" / "libx.so", chosen())
    (library,) = result.libraries
    assert library.pack
    assert {path.name for path in (tmp_path / "out" / "torchtailor-packs").iterdir()} == {library.pack, HOOK_NAME}


def test_a_library_that_was_cut_to_a_program_is_not_taken_from_its_packs(tmp_path: Path, fat: bytes) -> None:
    (tmp_path / "libx.so").write_bytes(fat)
    tailor_file(tmp_path / "libx.so", tmp_path / "out" / "libx.so", chosen())
    for again in (chosen(), options()):
        with pytest.raises(ImpossibleError, match="cut to a program already"):
            tailor_file(tmp_path / "out" / "libx.so", tmp_path / "moved" / "libx.so", again)
    assert not (tmp_path / "moved").exists()


def test_an_environment_that_was_cut_to_another_program(site: Path) -> None:
    tailor_environment(site, chosen())
    before = tree(site)
    for workload in (TracedWorkload(Trace(opened=("torch/lib/other.so",))), None):
        again = replace(options(), workload=workload)
        libraries = {one.path: one for one in tailor_environment(site, again).libraries}
        library = libraries["torch/lib/libtorch_cuda.so"]
        assert library.status is LibraryStatus.UNCHANGED
        assert any("cut to a program before" in warning for warning in library.warnings)
        assert tree(site) == before


def test_verify_finds_packs_where_the_hook_does(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", chosen(packs=tmp_path / "packs"))
    assert result.output
    artifact = open_artifact(result.output)
    with packs_of(artifact) as found:
        assert found == ()
    (pack,) = (tmp_path / "packs").iterdir()
    for place in (tmp_path / "packs", pack):
        monkeypatch.setenv("TORCHTAILOR_PACK", f"{tmp_path / 'none'}:{place}")
        with packs_of(artifact) as found:
            assert found == (pack,)


def test_a_trace_of_another_release_is_said(tmp_path: Path, fat: bytes) -> None:
    (tmp_path / "libx.so").write_bytes(fat)
    for name, warned in (("libx.so", True), ("liby.so", False)):
        recorded = Trace((TracedLibrary("1" * 32, name, 5, (1,)),))
        output = tmp_path / f"{name}-out" / "libx.so"
        result = tailor_file(tmp_path / "libx.so", output, replace(options(), workload=TracedWorkload(recorded)))
        assert any("another release" in said for said in result.libraries[0].warnings) is warned


def test_a_folder(tmp_path: Path, site: Path) -> None:
    folder, out = tmp_path / "env", tmp_path / "out"
    result = tailor_folder(folder, out, chosen())
    (library,) = result.libraries
    packs = out / "lib" / "python3.13" / "site-packages" / "torchtailor-packs" / "torch"
    assert {path.name for path in packs.iterdir()} == {library.pack, HOOK_NAME}
    check_records(out / "lib" / "python3.13" / "site-packages")
    assert result.unopened == len(b"// a")


def test_packs_elsewhere_and_nowhere(tmp_path: Path, site: Path) -> None:
    away = tmp_path / "volume"
    result = tailor_folder(tmp_path / "env", tmp_path / "out", chosen(packs=away))
    assert [path.name for path in away.iterdir()] == [result.libraries[0].pack]
    tailor_folder(tmp_path / "env", tmp_path / "none", chosen(no_pack=True))
    for name in ("out", "none"):
        assert [path.name for path in (tmp_path / name).rglob("torchtailor-packs/torch/*")] == [HOOK_NAME]


def test_a_wheel(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", chosen())
    assert result.output is not None and f"sm90.{TracedWorkload(TRACE).label}" in result.output.name
    with zipfile.ZipFile(result.output) as made:
        names = made.namelist()
        listed = {
            row[0]
            for name in names
            if name.endswith("RECORD")
            for row in csv.reader(io.StringIO(made.read(name).decode()))
        }
        assert made.testzip() is None
    (library,) = result.libraries
    assert {f"torchtailor-packs/torch/{library.pack}", f"torchtailor-packs/torch/{HOOK_NAME}"} <= set(names)
    assert set(names) == listed
    install(result.output, tmp_path / "site")
    check_records(tmp_path / "site")


def test_an_environment_and_back(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, chosen(keep_removed=True))
    packs = site / "torchtailor-packs" / "torch"
    assert len(list(packs.iterdir())) == 2
    check_records(site)
    restore_environment(site)
    assert tree(site) == before
    assert not packs.parent.exists()


def test_twice_changes_nothing(site: Path) -> None:
    tailor_environment(site, chosen())
    before = tree(site)
    tailor_environment(site, chosen())
    assert tree(site) == before


def test_a_reinstalled_package_takes_its_packs_along(site: Path, wheel: Path) -> None:
    tailor_environment(site, chosen())
    install(wheel, site)
    tailor_environment(site, replace(chosen(), dry_run=False))
    check_records(site)
    assert len(list((site / "torchtailor-packs" / "torch").iterdir())) == 2


def test_unopened_files_go_and_come_back(site: Path, tmp_path: Path) -> None:
    before = tree(site)
    result = tailor_environment(site, chosen(drop_unopened=True, keep_removed=True, no_pack=True))
    assert [file.path for file in result.dropped_files] == ["torch/include/a.h"]
    assert not (site / "torch/include/a.h").exists()
    restore_environment(site)
    assert tree(site) == before


def test_what_goes_to_packs_is_not_said_to_be_left_in(site: Path, tmp_path: Path, fat: bytes) -> None:
    used = TracedLibrary("0" * 32, "libtorch.so", 0, (), pages=((0, 1),))
    workload = TracedWorkload(Trace((used,), opened=("torch/__init__.py",)))
    (site / "torch" / "lib" / "liblarge.so").write_bytes(fat.ljust(1 << 17, b"\0"))
    unopened = {}
    for drop in (False, True):
        cut = chosen(workload=workload, drop_unopened=drop)
        unopened[drop] = tailor_folder(site, tmp_path / str(drop), cut).unopened
    assert unopened[False] >= 1 << 17
    assert not unopened[True]


def test_options_that_need_a_workload() -> None:
    for more in ({"no_pack": True}, {"packs": Path("x")}, {"drop_unopened": True}):
        with pytest.raises(UsageError):
            replace(options(), **more)
    with pytest.raises(UsageError):
        chosen(packs=Path("x"), no_pack=True)


def test_a_program_with_code_beside_files_that_were_never_opened(tmp_path: Path, fat: bytes) -> None:
    """It is cut without the workload, which asked for files to be left out: that was taken for a wrong option."""
    files = {"torch/bin/tool": fat, "torch/lib/libtorch_cuda.so": fat, "torch/include/a.h": b"// a"}
    wheel = build_wheel(tmp_path, files, name="torch", version="2.10.0")
    trace = Trace(opened=("torch/lib/libtorch_cuda.so", "torch/bin/tool"))
    result = tailor_wheel(wheel, tmp_path / "out", options(workload=TracedWorkload(trace), drop_unopened=True))
    assert {one.path for one in result.changed} == {"torch/bin/tool", "torch/lib/libtorch_cuda.so"}
    assert [file.path for file in result.dropped_files] == ["torch/include/a.h"]
