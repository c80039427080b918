"""`record`, `trace` and `run`: what a user types, and what comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.core.errors import EnvironmentProblem, NoMatchError
from torchtailor.workload import record
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
    preloaded, recorded = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines()
    hook, others = preloaded.split(":")
    # A copy, where the path of these sources has a space.
    assert " " not in hook and Path(hook).read_bytes() == preload.read_bytes()
    assert (others, recorded) == ("libm.so.6", str(folder.resolve()))
    (tmp_path / "file").touch()
    done = torchtailor("record", "--print-env", tmp_path / "file")
    assert done.returncode == 7 and "bug" not in done.stderr
    for more in (["--json"], ["-o", "a.trace"], ["--", "true"]):
        done = torchtailor("record", "--print-env", tmp_path / "other", *more)
        assert done.returncode == 2 and "export" not in done.stdout


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


@pytest.mark.usefixtures("preload")
def test_run_refuses_a_pack_whose_path_has_a_colon(tmp_path: Path) -> None:
    place = tmp_path / "a:b"
    place.mkdir()
    line = [sys.executable, "-m", "torchtailor", "run", "--pack", str(place), "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has a colon in it" in done.stderr.replace("\n", " ")


@pytest.mark.usefixtures("preload")
def test_the_output_and_the_end_of_a_program_are_its_own(tmp_path: Path) -> None:
    """With --json stdout is one document, whatever the program prints; 130 is how a program ends after Ctrl-C."""
    done = torchtailor("record", "-o", tmp_path / "a.trace", "--json", "--", "sh", "-c", "echo hello; exit 130")
    assert done.returncode == 130
    assert json.loads(done.stdout)["processes"] >= 1
    assert "hello" in done.stderr and "Stopped" not in done.stderr
    done = torchtailor("record", "-o", tmp_path, "--", "echo", "--json")
    assert done.returncode == 2 and done.stdout == ""


@pytest.mark.usefixtures("preload")
def test_programs_that_a_program_starts_are_opened(tmp_path: Path) -> None:
    """By the kernel; a static one cannot even have the recorder."""
    folder = tmp_path / "site-packages" / "tool" / "bin"
    folder.mkdir(parents=True)
    shutil.copy(shutil.which("true") or "", folder / "true")
    names = ["tool/bin/true"]
    if compiler := shutil.which("cc"):
        (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
        line = [compiler, "-static", "-o", str(folder / "static"), str(tmp_path / "a.c")]
        names += [] if subprocess.run(line, capture_output=True, check=False).returncode else ["tool/bin/static"]
    script = "import os, subprocess, sys\nfor one in sys.argv[1:]:\n    subprocess.run([one], check=True)\n"
    script += "    os.waitpid(os.posix_spawn(one, [one], os.environ), 0)\nos.execv(sys.argv[1], sys.argv[1:2])\n"
    programs = [str(tmp_path / "site-packages" / name) for name in names]
    done = torchtailor("record", "-o", tmp_path / "a.trace", "--", sys.executable, "-S", "-c", script, *programs)
    assert done.returncode == 0, done.stderr
    assert {name for name in read_trace(tmp_path / "a.trace").opened if name.startswith("tool/")} == set(names)


def test_a_recorder_whose_path_the_loader_would_split(
    tmp_path: Path, preload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "my project"
    place.mkdir()
    shutil.copy(preload, place / preload.name)
    monkeypatch.setattr(record, "hook_library", lambda *_: place / preload.name)
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    shown = record.with_preload({})["LD_PRELOAD"]
    assert shown.startswith(f"{tmp_path}/cache/") and Path(shown).read_bytes() == preload.read_bytes()
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "a:b"))
    with pytest.raises(EnvironmentProblem, match="a space or a colon"):
        record.with_preload({})
