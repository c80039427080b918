"""Detection as a whole: it never raises, and a real machine's probe keeps its time-outs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest

from tests import machines
from tests.waiting import processes_naming, wait_until
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.model import InstalledTorch
from torchtailor.advise.host.probe import Basics, CommandOutcome, CommandResult, LiveProbe
from torchtailor.advise.host.torches import parse_version
from torchtailor.cli.detect import _rows


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


@pytest.mark.parametrize(
    ("lines", "cuda", "other", "shown"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "13.0", None, "GPU code not read"),
        ("cuda = None\nhip = None\nxpu = None", None, None, "CPU only"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482-0f2d60242'", None, "ROCm 6.4.43482", "for ROCm"),
        ("cuda = None\nhip = None\nxpu: Optional[str] = '20250101'", None, "XPU 20250101", "for XPU 20250101"),
    ],
)
def test_what_an_installed_torch_was_built_for(lines: str, cuda: str | None, other: str | None, shown: str) -> None:
    built = parse_version(f"__version__ = '2.13.0'\ndebug = False\n{lines}\n")
    assert (built.version, built.cuda, built.other) == ("2.13.0", cuda, other)
    torch = InstalledTorch(version="2.13.0", path="/torch", python="3.13", cuda=cuda, other=other)
    host = msgspec.structs.replace(machines.host("zen4"), torches=(torch,))
    assert shown in dict(_rows(host, machines.catalog()))["PyTorch"]


@pytest.mark.parametrize(("system", "says"), [("Darwin", "macOS, kernel 24.1.0"), ("Linux", ", Linux 24.1.0")])
def test_only_linux_is_called_linux(system: str, says: str) -> None:
    basics = msgspec.structs.replace(machines.recording("zen4").basics, system=system, kernel="24.1.0")
    assert says in dict(_rows(machines.host("zen4", basics=basics), machines.catalog()))["System"]


@pytest.mark.parametrize(
    ("kernel", "largest", "arch"),
    [
        ("aarch64", (1 << 63) - 1, "aarch64"),
        ("aarch64", (1 << 31) - 1, "armv7l"),
        ("x86_64", (1 << 31) - 1, "i686"),
        ("armv7l", (1 << 31) - 1, "armv7l"),
    ],
)
def test_programs_of_32_bits_below_a_kernel_of_64(
    kernel: str, largest: int, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Raspberry Pi OS has them: no wheel for aarch64 runs there."""
    monkeypatch.setattr("platform.machine", lambda: kernel)
    monkeypatch.setattr("sys.maxsize", largest)
    assert LiveProbe().basics().arch == arch
