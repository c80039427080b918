"""Some of everything, with a fixed seed, so that every run of the tests has it; the long form is `make torture`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.harness import Torture, run_class, table
from torchtailor.core.errors import BadInputError


@pytest.mark.parametrize(
    "much", [("--short",), pytest.param(("--cases", "80", "--kills", "3"), marks=pytest.mark.slow)]
)
def test_some_of_everything(much: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.torture", *much, "--seed", "1", "--jobs", "1"]  # prepares once
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "| all | " in done.stdout


class _Bad(Torture):
    """Everything that a case can do wrong; the last one kills its process."""

    name = "bad"

    def prepare(self, folder: Path) -> None:
        self.number = -1

    def attempt(self, dice: random.Random, folder: Path) -> str:
        self.number += 1
        match self.number:
            case 1:
                raise KeyError("a bug")
            case 2:
                bytearray(64 << 30)
            case 3:
                while True:
                    pass
            case 4:
                raise BadInputError("no sentence")
            case 5:
                os.kill(os.getpid(), signal.SIGKILL)
        return "fine"


def test_the_harness_finds_what_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.torture.harness.SECONDS", 0.5)
    row = run_class(_Bad(), 1, range(7))
    assert (row.tries, row.survived) == (7, 2)  # the seventh runs in a new process
    said = " ".join(row.failures)
    for word in ("KeyError", "MemoryError", "TooSlowError", "no sentence", "signal 9"):
        assert word in said
    assert "| bad | 7 | 2 | 5 | fine 2 |" in table([row])
