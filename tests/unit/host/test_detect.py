"""Detection as a whole: it never raises, and a real machine's probe keeps its time-outs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests import machines
from tests.waiting import processes_naming, wait_until
from torchtailor.host.detect import detect
from torchtailor.host.probe import Basics, CommandOutcome, CommandResult, LiveProbe


class BrokenProbe:
    """A machine on which everything goes wrong."""

    def basics(self) -> Basics:
        raise OSError("no basics")

    def env(self, name: str) -> str | None:
        return None

    def read(self, path: str) -> str | None:
        raise RuntimeError(f"no {path}")

    def list(self, path: str) -> tuple[str, ...]:
        raise PermissionError(path)

    def which(self, name: str) -> str | None:
        return f"/bin/{name}"

    def run(self, args: Sequence[str], timeout: float) -> CommandResult:
        raise ValueError("no commands")

    def nvml(self, timeout: float) -> CommandResult:
        raise SystemError("NVML")

    def gpu_code(self, path: str) -> tuple[str, ...]:
        raise OSError(path)


def test_a_machine_on_which_everything_fails_is_described_and_it_is_said() -> None:
    host = detect(BrokenProbe(), machines.catalog())
    assert host.cpu.arch == "unknown" and host.gpus == ()
    said = " ".join(note.text for note in host.notes)
    for part in ("The CPU", "The GPUs", "The system", "Memory and disk", "A tool", "PyTorch"):
        assert part in said


@pytest.mark.parametrize("line", ["exec sleep SECONDS", "sleep SECONDS & wait"])
def test_a_command_that_hangs_is_killed_with_its_children(line: str) -> None:
    """A shell whose child holds the pipe open must not keep us waiting."""
    seconds = f"1000.{os.getpid()}"  # nobody else sleeps so long
    ran = LiveProbe().run(("/bin/sh", "-c", line.replace("SECONDS", seconds)), 0.5)
    assert ran.outcome is CommandOutcome.TIMED_OUT
    wait_until(lambda: not processes_naming(seconds), "the command is dead")


@pytest.mark.parametrize(
    ("args", "outcome"),
    [
        (("/bin/sh", "-c", "echo hello"), CommandOutcome.DONE),
        (("/bin/sh", "-c", "echo no; exit 3"), CommandOutcome.FAILED),
        (("/nonexistent/tool",), CommandOutcome.MISSING),
        (("/etc/passwd",), CommandOutcome.MISSING),
    ],
)
def test_how_commands_end(args: tuple[str, ...], outcome: CommandOutcome) -> None:
    assert LiveProbe().run(args, 5).outcome is outcome


def test_what_cannot_be_read_is_none() -> None:
    probe = LiveProbe()
    assert probe.read("/nonexistent") is None
    assert probe.read("/") is None
    assert probe.list("/nonexistent") == ()
    assert probe.which("no-such-program-anywhere") is None
    assert probe.gpu_code("/nonexistent") == ()


def test_recorded_machines_carry_nothing_private() -> None:
    """Paths and names of the machine that made a recording do not belong into the repository."""
    for name in machines.NAMES:
        text = (machines.FOLDER / f"{name}.json").read_text()
        assert "/work/" not in text and "/root/" not in text
