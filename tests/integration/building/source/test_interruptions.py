"""What ends a build from outside: kills, Ctrl-C, a full disk, another build of the same source."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.calling import call
from tests.integration.building.source.conftest import ISA
from tests.waiting import LONG, processes_naming, wait_until
from torchtailor.building.ledger.ledger import Ledger, Result
from torchtailor.core.errors import ExitCode
from torchtailor.core.pythons import running_python

pytestmark = pytest.mark.xdist_group("source")

Start = Callable[..., "subprocess.Popen[str]"]
Words = Callable[..., list[str]]
# So many files of the project are compiled; all others wait until the test opens the gate.
GATE = r"""
case "$*" in *cmTC_*) ;;  # CMake tries the compiler
*.cpp.o\ -c\ *)
  for number in $(seq COUNT); do mkdir $HERE/$number 2>/dev/null && exec $REAL "$@"; done
  until [ -e $HERE/open ]; do sleep 0.05; done;;
esac
"""


@pytest.fixture
def words(project: Path, work: Path, tmp_path: Path, ledger: Ledger) -> Words:
    """The words of `torchtailor build --via source` with the small project."""

    def of(*more: str, isa: str = ISA, folder: Path = work) -> list[str]:
        line = ["build", f"cpu-{isa}", "--via", "source", "--source", str(project), "--python", running_python()]
        line += ["--profile", "minimal", "--no-verify", "--no-bundle", "--no-ccache"]
        line += ["--skip-check", "blas", "--skip-check", "disk", "--skip-check", "memory", "--work", str(folder)]
        return [*line, "-o", str(tmp_path / "dist"), *more]

    return of


@pytest.fixture
def start(words: Words, tmp_path: Path) -> Iterator[Start]:
    """Start it as a process of its own, which something may end."""
    running: list[subprocess.Popen[str]] = []

    def run(*more: str, isa: str = ISA) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "torchtailor", *words(*more, isa=isa)]
        process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ), cwd=tmp_path
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_files(ledger: Ledger, count: int) -> Path:
    """Until the newest attempt's log says that so many files are compiled."""

    def newest() -> Path | None:
        attempts = ledger.attempts()
        log = Path(attempts[-1].log) if attempts and attempts[-1].log else None
        done = log and log.is_file() and log.read_text("utf-8", "replace").count("Building CXX object") >= count
        return log if done else None

    found = wait_until(newest, f"{count} files are compiled")
    assert found is not None
    return found


def compiled(log: Path) -> list[str]:
    return [line.split()[-1] for line in log.read_text().splitlines() if "Building CXX object" in line]


@pytest.mark.parametrize(("number", "result"), [(signal.SIGKILL, Result.KILLED), (signal.SIGINT, Result.INTERRUPTED)])
def test_what_was_compiled_is_not_compiled_again(
    start: Start,
    words: Words,
    ledger: Ledger,
    wrapped_compiler: Callable[[str], Path],
    work: Path,
    number: int,
    result: Result,
) -> None:
    gate = wrapped_compiler(GATE.replace("COUNT", "2"))
    first = start("--jobs", "1")
    wait_for_files(ledger, 2)
    first.send_signal(number)
    first.wait(LONG)
    (gate / "open").touch()
    wait_until(lambda: not processes_naming(str(work / "builds")), "ninja and the compilers have ended")
    _, said = first.communicate()
    assert "Traceback" not in said
    assert first.returncode == (-9 if number == signal.SIGKILL else ExitCode.INTERRUPTED)
    (killed,) = ledger.attempts()
    assert killed.result is result
    before = compiled(Path(killed.log))
    assert len(before) == 2
    second = call(*words("--jobs", "1", "--resume", "--json"))
    assert second.returncode == 0, second.stderr
    after = compiled(Path(ledger.attempts()[-1].log))
    assert not set(before) & set(after)
    assert len(before) + len(after) == 6
    assert json.loads(second.stdout)["builds"][0]["wheelhouses"][0]["wheels"] == 1


def test_two_builds_at_once_on_one_source(start: Start, project: Path, tmp_path: Path) -> None:
    others = {"avx2": "avx", "armv8_2": "armv9"}
    builds = [start(isa=ISA), start(isa=others[ISA])]
    for process in builds:
        _, said = process.communicate(timeout=LONG)
        assert process.returncode == 0, said
    assert not (project / "build").exists()
    assert len(list((tmp_path / "dist").glob("*/wheels/*.whl"))) == 2


def test_the_same_build_at_once_is_refused(
    start: Start, words: Words, ledger: Ledger, wrapped_compiler: Callable[[str], Path]
) -> None:
    gate = wrapped_compiler(GATE.replace("COUNT", "1"))
    first = start("--jobs", "2")
    wait_for_files(ledger, 1)
    second = call(*words("--jobs", "2"))
    assert second.returncode == ExitCode.ENVIRONMENT
    assert f"process {first.pid} on " in second.stderr
    (gate / "open").touch()
    assert first.wait(LONG) == 0


def test_a_full_disk_is_named(words: Words, ledger: Ledger, project: Path, work: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(small)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk: {mounted.stderr.strip()}")
    try:
        (small / "env").symlink_to(work / "env")
        (project / "c10" / "a.cpp").write_text('char big[8 << 20] = {1};\nextern "C" int value_a() { return 7; }\n')
        done = call(*words("--jobs", "1", folder=small))
        assert done.returncode == ExitCode.BUILD_FAILED, done.stderr
        assert "Traceback" not in done.stderr
        attempt = ledger.attempts()[-1]
        assert attempt.result is Result.FAILED
        assert attempt.failure == "disk-full", done.stderr
        subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
        again = call(*words("--jobs", "1", folder=small))
        assert again.returncode == 0, again.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_history_shows_switches_and_where_it_stopped(words: Words, project: Path, ledger: Ledger) -> None:
    (project / "c10" / "tailor_values.h").unlink()
    done = call(*words("--set", "USE_NUMPY=0"))
    assert done.returncode == ExitCode.BUILD_FAILED
    assert "tailor_values.h" in done.stderr
    said = re.findall("pytorch\\d+", done.stderr.partition(".log")[0])
    assert said == ["pytorch299"] * 2  # the source's, also in the log
    last = call("doctor", "--last")
    assert "missing-header" in last.stdout, last.stderr
    table = call("history", "--markdown").stdout
    head, row = table.splitlines()[0], table.splitlines()[2]
    assert "USE_NUMPY" in head
    assert "failed at" in row
    assert "%" in row
