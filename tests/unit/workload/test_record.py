"""`record`, `trace` and `run`: what a user types, and what comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtailor.binary.elf_headers import ElfMachine
from torchtailor.errors import EnvironmentProblem, NoMatchError
from torchtailor.workload.hook import HookKind, hook_library
from torchtailor.workload.record import check_startable, trace_of
from torchtailor.workload.trace import Trace, read_trace, write_trace

SCRIPT = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(9)
"""


def torchtailor(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "torchtailor", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.fixture
def preload() -> Path:
    machine = {"x86_64": ElfMachine.X86_64, "aarch64": ElfMachine.AARCH64}[os.uname().machine]
    try:
        return hook_library(machine, HookKind.PRELOAD)
    except EnvironmentProblem as error:
        pytest.skip(error.message)


def test_an_output_that_cannot_be_written_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    ran, blocked = tmp_path / "ran", tmp_path / "file"
    blocked.touch()
    for output, code in ((tmp_path, 2), (blocked / "a.trace", 7)):
        done = torchtailor("record", "-o", output, "--", "touch", ran)
        assert done.returncode == code, done.stderr
        assert "bug" not in done.stderr and not ran.exists()


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.trace", Trace())
    for words in (
        ["trace", "merge", tmp_path / "a.trace", "-o", tmp_path],
        ["build", "sm90-avx2", "--margin", "library"],
    ):
        done = torchtailor(*words)
        assert done.returncode == 2, done.stderr


def test_a_folder_where_nothing_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="recorded anything"):
        trace_of([tmp_path])
    with pytest.raises(NoMatchError):
        trace_of([tmp_path / "none.tsv"])


def test_a_program_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    with pytest.raises(EnvironmentProblem, match="not executable"):
        check_startable(str(tmp_path / "app.py"))
    with pytest.raises(NoMatchError):
        check_startable(str(tmp_path / "none"))


def test_the_variables_survive_a_shell(tmp_path: Path, preload: Path) -> None:
    folder = tmp_path / "two words"
    done = torchtailor("record", "--print-env", folder, LD_PRELOAD="libm.so.6")
    shown = ["sh", "-c", 'eval "$1"; echo "$LD_PRELOAD"; echo "$TORCHTAILOR_RECORD"', "sh", done.stdout]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines() == [
        f"{preload}:libm.so.6",
        str(folder.resolve()),
    ]
    (tmp_path / "file").touch()
    done = torchtailor("record", "--print-env", tmp_path / "file")
    assert done.returncode == 7 and "bug" not in done.stderr


@pytest.mark.usefixtures("preload")
@pytest.mark.parametrize(
    ("number", "group", "code"),
    [(signal.SIGINT, True, 9), (signal.SIGTERM, False, 128 + signal.SIGTERM), (signal.SIGHUP, True, 129)],
)
def test_a_program_that_is_stopped_leaves_its_trace(
    tmp_path: Path, number: signal.Signals, group: bool, code: int
) -> None:
    ready, output, argument = tmp_path / "ready", tmp_path / "a.trace", os.fsdecode(b"\xff")
    line = [sys.executable, "-m", "torchtailor", "record", "-o", str(output), "--"]
    line += [sys.executable, "-c", SCRIPT, str(ready), argument]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    before = signal.signal(number, signal.SIG_DFL)  # under nohup a child would inherit that it is ignored
    try:
        started = subprocess.Popen(line, start_new_session=True, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        signal.signal(number, before)
    with started as child:
        began = time.monotonic()
        while not ready.exists() and time.monotonic() < began + 60:
            time.sleep(0.05)
        time.sleep(0.2)
        (os.killpg if group else os.kill)(child.pid, number)
        said = child.communicate(timeout=60)[1]
    assert child.returncode == code, said
    assert read_trace(output).processes == 1
    assert not list(scratch.iterdir())


def test_a_margin_without_a_workload(tmp_path: Path) -> None:
    (tmp_path / "libx.so").touch()
    done = torchtailor("tailor", tmp_path / "libx.so", "--gpu", "9.0", "--margin", "library", "-o", tmp_path / "out")
    assert done.returncode == 2 and "--margin needs --workload" in done.stderr


def test_run_refuses_a_pack_whose_path_has_a_colon(tmp_path: Path) -> None:
    place = tmp_path / "a:b"
    place.mkdir()
    line = [sys.executable, "-m", "torchtailor", "run", "--pack", str(place), "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has a colon in it" in done.stderr.replace("\n", " ")
