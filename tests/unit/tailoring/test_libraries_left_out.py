"""Libraries that --drop-unopened leaves out: loading one names the command that brings it back."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.placeholder import as_library_name, machine_of, placeholder
from torchtailor.code.binary.source import BufferSource
from torchtailor.core.errors import BadInputError
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.artifact.libraries import is_placeholder
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

LIBRARY = "demo/lib/libdemo.so.12"
USED = "torch/lib/libtorch_cuda.so"


def chosen(**more: object) -> Cut:
    workload = TracedWorkload(Trace(opened=(USED,)))
    return replace(options(), workload=workload, drop_unopened=True, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def real() -> bytes:
    """A library of this machine, which this process uses."""
    assert math.pi
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in lines if "/libm.so" in line or "/libm-" in line}
    if not paths:
        pytest.skip("this Python has no shared libm")
    return Path(paths.pop()).read_bytes()


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes, real: bytes) -> Path:
    return build_wheel(tmp_path, {"demo/__init__.py": b"", LIBRARY: real, USED: fat}, name="demo", version="3.4.0")


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    (site / LIBRARY).chmod(0o755)
    return site


def loading(place: Path, name: str = "", **variables: str) -> str:
    code = f"import ctypes; ctypes.CDLL({name or str(place)!r}); print('loaded')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def check(site: Path, command: str) -> None:
    check_records(site)
    place = site / LIBRARY
    assert is_placeholder(place)
    assert place.stat().st_size < 4096
    wanted = (
        "OSError: libdemo.so.12 was left out, because the program that was recorded never opened it; "
        f"{command} brings it back: "
    )
    assert loading(place).startswith(wanted)
    assert loading(place, place.name, LD_LIBRARY_PATH=str(place.parent)).startswith(wanted)
    assert [one.name for one in open_artifact(site).libraries if one.name.startswith("demo/")] == []
    (manifest,) = site.glob("demo-*.dist-info/torchtailor.json")
    (row,) = json.loads(manifest.read_text())["dropped_files"]
    assert row["path"] == LIBRARY


def test_in_an_environment_and_back(site: Path) -> None:
    before = tree(site)
    assert loading(site / LIBRARY) == "loaded"
    for _ in range(2):
        result = tailor_environment(site, chosen(keep_removed=True))
        assert LIBRARY not in {one.path for one in result.libraries}
        check(site, "`torchtailor restore`")
        assert stat.S_IMODE((site / LIBRARY).stat().st_mode) == 0o755
    restore_environment(site)
    assert tree(site) == before
    assert stat.S_IMODE((site / LIBRARY).stat().st_mode) == 0o755
    assert loading(site / LIBRARY) == "loaded"


def test_another_cut_leaves_it_as_it_is(site: Path) -> None:
    tailor_environment(site, chosen(keep_removed=True))
    again = tailor_environment(site, replace(options(), keep_removed=True))
    assert LIBRARY not in {one.path for one in again.libraries}
    check(site, "`torchtailor restore`")
    restore_environment(site)
    assert loading(site / LIBRARY) == "loaded"


def test_a_placeholder_that_somebody_deleted_does_not_hinder_restore(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, chosen(keep_removed=True))
    (site / LIBRARY).unlink()
    restore_environment(site)
    after = tree(site)
    records = {path for path in before if path.endswith("/RECORD")}
    assert {path: after[path] for path in before if path not in records} == {
        path: before[path] for path in before if path not in records
    }
    check_records(site)


def test_reinstalled_by_hand_it_is_not_replaced(site: Path, real: bytes) -> None:
    tailor_environment(site, chosen())
    (site / LIBRARY).write_bytes(real + b"another build")
    assert restore_environment(site).to_reinstall == ("demo==3.4.0",)  # torch's library
    assert (site / LIBRARY).read_bytes() == real + b"another build"


def test_in_a_folder(tmp_path: Path, site: Path) -> None:
    tailor_folder(tmp_path / "env", tmp_path / "out", chosen())
    check_folder = tmp_path / "out" / "lib" / "python3.13" / "site-packages"
    check_records(check_folder)
    assert "installing demo 3.4.0 again brings it back: " in loading(check_folder / LIBRARY)


def test_a_library_of_no_package_leaves_nothing(tmp_path: Path, site: Path) -> None:
    for record in site.glob("*.dist-info"):
        shutil.rmtree(record)
    tailor_folder(tmp_path / "env", tmp_path / "out", chosen())
    assert not (tmp_path / "out" / "lib" / "python3.13" / "site-packages" / LIBRARY).exists()


def test_in_a_wheel_and_again(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "made", chosen())
    assert result.output is not None
    install(result.output, tmp_path / "site")
    check(tmp_path / "site", "`pip install --force-reinstall --no-deps demo==3.4.0`")
    again = tailor_wheel(result.output, tmp_path / "again", options())
    assert LIBRARY not in {one.path for one in again.libraries}


def test_given_alone_it_is_no_library(site: Path) -> None:
    tailor_environment(site, chosen())
    with pytest.raises(BadInputError, match="was left out with --drop-unopened"):
        open_artifact(site / LIBRARY)


@pytest.mark.parametrize("machine", ElfMachine)
def test_for_each_processor(machine: ElfMachine) -> None:
    data = placeholder(machine, "libx.so.1", "libx.so.1 was left out")
    elf = ElfFile(BufferSource(data))
    assert elf.machine is machine
    assert machine_of(data) is machine


def test_a_sentence_is_a_name_that_the_linker_looks_for(tmp_path: Path, real: bytes) -> None:
    machine = machine_of(real)
    assert machine
    place = tmp_path / "libx.so"
    place.write_bytes(placeholder(machine, "libx.so", f"$ORIGIN/a/b costs 5$ {'é' * 300}"))
    said = loading(place)
    assert said.startswith("OSError: _ORIGIN|a|b costs 5_ é")
    assert said.endswith("No such file or directory")
    assert len(as_library_name("é" * 300)) == 254


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01\x01" + bytes(60), b"MZ" + bytes(80)])
def test_what_is_no_library_gets_no_placeholder(data: bytes) -> None:
    assert machine_of(data) is None
