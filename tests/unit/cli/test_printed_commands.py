"""What the output says can be typed: every command in it is one of this program, with options that it has; and what
`recommend` and `doctor` say is installed from the configured indexes.

The option parser refuses an unknown option before `--help` is looked at, so a command is tried without doing anything.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.calling import call
from tests.unit.building.stack import packages, torch
from tests.unit.fetch.packages import html_index
from tests.unit.fetch.serving import Site, serve
from torchtailor.core.errors import ExitCode
from torchtailor.verification.failures import load_failures

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"
_IN_TEXT = re.compile(r"`(torchtailor [^`]+)`")
_ON_A_LINE = re.compile(r"^\s*(?:\S+ +)?(torchtailor (?!\d)[a-z].*)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]*\b|\.\.\.|[<>|]")

# A line each: what someone types who does not know better, and the messages that they get explained.
SITUATIONS = (
    "recommend",
    "recommend --why",
    "recommend --gpu H100 --driver 535.129.03 --cpu zen4",
    "recommend --gpu 'GTX 1060' --gpu 'RTX 4060 Ti' --driver 580.95.05 --cpu zen3",
    "recommend --gpu K80 --driver 470.256.02 --cpu haswell",
    "recommend --gpu 'Jetson Orin' --jetpack 6.2",
    "recommend --gpu 'RTX 5090' --driver 550.54.14 --cpu zen5",
    "recommend --gpu none --cpu Graviton4 --python 3.9",
    "recommend --gpu 'RTX 4900'",
    "recommend --release 9.9",
    "matrix sm99-avx2",
    "matrix sm90-avx2 --python 3.4",
    "build sm90-nothing",
    "install",
    "install sm90-avx2",
    "install sm89-avx512 --dry-run",
    "tailor",
    "tailor missing.whl --gpu 9.0",
    "tailor --env .venv",
    "inspect missing.so",
    "verify missing",
    "restore",
    "publish",
    "publish --to index",
    "image missing:latest --gpu 9.0",
    "history",
    "doctor --last",
    "doctor 'RuntimeError: CUDA error: no kernel image is available for execution on the device'",
    "doctor 'ImportError: /lib64/libc.so.6: version `GLIBC_2.28'\"'\"' not found'",
    "doctor 'operator torchvision::nms does not exist'",
    "doctor 'Torch not compiled with CUDA enabled'",
    "doctor 'Error 804: forward compatibility was attempted on non supported HW'",
    "doctor 'undefined symbol: _ZN3c104cuda9SetDeviceEi'",
    "doctor 'ptxas fatal : Value sm_121a is not defined for option gpu-name'",
    "doctor 'ERROR: No matching distribution found for torch==2.1.0'",
)


@pytest.fixture(scope="module")
def index() -> Iterator[Site]:
    """Only PyTorch 2.8.0, which no catalog calls the newest."""
    with serve(Site()) as running:
        running.content |= html_index([torch(python=HERE), *packages()])
        yield running


def run(words: list[str], folder: Path, index: Site) -> CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "TORCHTAILOR_CACHE") if name in os.environ}
    environment = {**kept, "HOME": str(folder), "PIP_INDEX_URL": f"{index.url}/simple"}
    return call(*words, cwd=folder, environment=environment)


def refused(commands: Iterable[str], folder: Path, index: Site) -> dict[str, str]:
    tried = {one: run([*shlex.split(one)[1:], "--help"], folder, index) for one in commands}
    return {one: told.stderr for one, told in tried.items() if told.returncode}


def printed(text: str) -> list[str]:
    return list(dict.fromkeys([*_IN_TEXT.findall(text), *_ON_A_LINE.findall(text)]))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_printed_can_be_typed(situation: str, tmp_path: Path, index: Site) -> None:
    done = run(shlex.split(situation), tmp_path, index)
    assert done.returncode != ExitCode.INTERNAL, done.stderr
    commands = [one for one in printed(done.stdout + done.stderr) if not _PLACEHOLDER.search(one)]
    assert refused(commands, tmp_path, index) == {}


def test_what_failures_say_can_be_typed(tmp_path: Path, index: Site) -> None:
    texts = " ".join(failure.cause + failure.fix for failure in load_failures())
    commands = {_PLACEHOLDER.sub("x", one) for one in _IN_TEXT.findall(texts)}
    assert len(commands) >= 8
    assert refused(commands, tmp_path, index) == {}


@pytest.mark.parametrize(
    "asked",
    [
        "recommend",
        "recommend --gpu H100 --driver 580.95.05 --cpu zen4 --release 2.8",
        "doctor \"No module named 'torch'\"",
    ],
)
def test_what_is_said_to_be_installed_is(asked: str, tmp_path: Path, index: Site) -> None:
    done = run(shlex.split(asked), tmp_path, index)
    commands = [one for one in printed(done.stdout) if one.startswith("torchtailor install")]
    assert commands, done.stdout
    for command in commands[:1]:
        tried = run([*shlex.split(command)[1:], "--dry-run"], tmp_path, index)
        assert tried.returncode == 0, (command, tried.stderr)
