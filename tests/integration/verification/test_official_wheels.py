"""Official wheels of both platforms: they pass, and what their baseline is comes out as known.

Run with `pytest -m "slow and network" tests/integration/verify`; wheels are kept where TORCHTAILOR_TEST_CACHE says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtailor.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.network]

VERSION = "2.10.0"


def fetch(folder: Path, platform: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--platform", platform, "--python-version", "313", "-d", str(folder), f"torch=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"torch {VERSION} for {platform} could not be fetched")
    (wheel,) = folder.glob("*.whl")
    return wheel


def verify(wheel: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["verify", str(wheel), "--level", "static", "--json", *options])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def baseline(document: dict[str, Any]) -> list[str]:
    (check,) = [check for check in document["checks"] if check["name"].startswith("host code: baseline")]
    words: list[str] = check["details"]["needs"]
    return words


def test_x86_64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The wheel runs on any x86-64: all else is behind dispatch."""
    wheel = fetch(tmp_path, "manylinux_2_28_x86_64")
    code, document = verify(wheel, capsys, "--gpu", "9.0", "--cpu", "avx")
    assert baseline(document) == []
    assert [check["name"] for check in document["checks"] if check["outcome"] == "fail"] == []
    assert code == 0


def test_aarch64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs LSE atomics at load time and has SVE in functions that plain code calls: docs/verify.md."""
    wheel = fetch(tmp_path, "manylinux_2_28_aarch64")
    code, document = verify(wheel, capsys)
    assert code == 0
    assert {"atomics", "sve"} <= set(baseline(document))
    code, document = verify(wheel, capsys, "--cpu", "armv8_2")
    (failed,) = [check for check in document["checks"] if check["outcome"] == "fail"]
    assert failed["name"] == "host code within armv8_2: libtorch_cpu.so"
    functions = " ".join(use["function"] for use in failed["details"]["functions"])
    assert "stack_serial_kernel_impl" in functions
    assert code == 6
