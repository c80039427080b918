"""Ctrl-C and kill while a wheel or a folder is made: no output, nothing left for long, the input as it was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.tailoring.helpers import tree
from tests.unit.wheels.builder import build_wheel
from tests.waiting import processes, wait_until


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Large enough for worker processes, and for being caught at work."""
    code = random.Random(1)
    (tmp_path / "in").mkdir()
    libraries = {
        f"demo/lib{number}.so": elf(
            Place(".nv_fatbin", container(*(Entry(code.randbytes(12_000_000), sm=sm) for sm in (80, 90, 100))))
        )
        for number in range(2)
    }
    return build_wheel(tmp_path / "in", libraries, method=0)


def _hears_sighup() -> None:
    """What nohup starts ignores it, and so do its children."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(wheel: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torchtailor", "tailor", str(wheel), "--gpu", "9.0", "-o", str(out)]
    return subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hears_sighup,  # noqa: PLW1509
    )


def wait_for_work(out: Path) -> None:
    wait_until(lambda: list(out.glob(".torchtailor-*/*/stock/*")), "a library is unpacked")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped(tmp_path: Path, wheel: Path, number: signal.Signals) -> None:
    """By Ctrl-C, which all processes get; by `docker stop`, a CI system or a closed terminal, which tell one."""
    before = tree(wheel.parent)
    out = tmp_path / "out"
    process = start(wheel, out)
    wait_for_work(out)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Stopped." in said and "Traceback" not in said
    assert not out.exists()
    assert tree(wheel.parent) == before


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path, wheel: Path) -> None:
    before = tree(wheel.parent)
    out = tmp_path / "out"
    process = start(wheel, out)
    wait_for_work(out)
    process.kill()
    process.communicate()
    assert list(out.glob("*.whl")) == []
    assert list(out.glob(".torchtailor-*"))
    wait_until(lambda: not processes(process.pid), "its workers have died with it")
    again = start(wheel, out)
    again.communicate()
    assert again.returncode == 0
    assert [path.name for path in out.iterdir()] == ["demo-1.0+sm90-py3-none-any.whl"]
    assert tree(wheel.parent) == before
