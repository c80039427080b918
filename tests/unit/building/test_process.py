"""Commands of a build: their lines, their end, and that they end with us, whatever threads run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchtailor.building.process import BuildCommand, Log, run
from torchtailor.core.errors import EnvironmentProblem


def command(folder: Path, script: str, **environment: str) -> BuildCommand:
    return BuildCommand(("sh", "-c", script), folder, {"PATH": os.environ["PATH"], **environment})


def output(folder: Path, script: str, **environment: str) -> tuple[int, list[str]]:
    lines: list[str] = []
    with Log(folder / "log") as log:
        return run(command(folder, script, **environment), lines.append, log=log), lines


def test_lines_environment_and_exit_code(tmp_path: Path) -> None:
    assert output(tmp_path, "echo $NAME; echo there >&2; pwd; exit 3", NAME="here") == (
        3,
        ["here", "there", str(tmp_path)],
    )
    assert output(tmp_path, "kill -9 $$") == (-9, [])
    assert "sh -c kill -9" in (tmp_path / "log").read_text()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log, pytest.raises(EnvironmentProblem, match="not an executable"):
        run(BuildCommand(("/no/such/ninja",), tmp_path, {}), print, log=log)
    with Log(tmp_path / "log") as log, pytest.raises(EnvironmentProblem, match="cannot be started in"):
        run(command(tmp_path / "nowhere", "true"), print, log=log)


def test_no_code_of_ours_runs_in_the_forked_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich draws bars in a thread; a lock that it holds at the fork is never released in a child of preexec_fn."""
    original, seen = subprocess.Popen, []

    def recording(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return original(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", recording)
    assert output(tmp_path, "echo done") == (0, ["done"])
    assert [options.get("preexec_fn") for options in seen] == [None]


_BUILDER = """
import os, sys, threading
from pathlib import Path
from torchtailor.building.process import BuildCommand, Log, run
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
command = BuildCommand(("sh", "-c", "echo $$; exec sleep 60"), Path(sys.argv[1]), {"PATH": os.environ["PATH"]})
with Log(Path(sys.argv[1]) / "log") as log:
    run(command, lambda line: print(line, flush=True), log=log)
"""


def test_it_ends_when_we_are_killed_though_threads_run(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _BUILDER, str(tmp_path)], stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        child = int(builder.stdout.readline())
        os.kill(child, 0)
        builder.kill()
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the command outlived the build")


def _runs(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
