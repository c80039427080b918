"""Where facts about a machine come from: the real one, a recording of one, or one that is being recorded.

All of detection asks a probe and nothing else, so that a machine can be replayed from a file.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, read_limited

_log = logging.getLogger(__name__)
RECORDING = "torchtailor-recording/1"
_NVML = "libnvidia-ml.so.1"
_READ_LIMIT = 4 << 20
# What programs of 32 bits are made for, below a kernel of 64 bits.
_OF_32_BITS = {"aarch64": "armv7l", "x86_64": "i686"}

T = TypeVar("T")


class CommandOutcome(Enum):
    """How a command ended."""

    DONE = "done"
    FAILED = "failed"  # it exited with an error
    MISSING = "missing"
    TIMED_OUT = "timed out"


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and its output."""

    outcome: CommandOutcome
    output: str = ""

    @property
    def done(self) -> bool:
        return self.outcome is CommandOutcome.DONE


class Basics(msgspec.Struct, frozen=True, kw_only=True):
    """What Python itself knows of the machine."""

    arch: str
    kernel: str
    system: str = "Linux"
    libc: str = ""
    affinity: int = 1
    disk_free: int = 0
    directory: str = "/"


class Probe(Protocol):
    """The questions that detection asks of a machine."""

    def basics(self) -> Basics: ...

    def env(self, name: str) -> str | None: ...

    def read(self, path: str) -> str | None:
        """A file's text; None where it is missing or may not be read."""

    def list(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; none where it is missing."""

    def which(self, name: str) -> str | None:
        """Where a program is on the search path."""

    def run(self, args: Sequence[str], timeout: float) -> CommandResult: ...

    def nvml(self, timeout: float) -> CommandResult:
        """The report of `torchtailor.advise.host.nvml`, made by a process of its own, since NVML can hang or crash."""

    def gpu_code(self, path: str) -> tuple[str, ...]:
        """The architectures of the GPU code in a library: `sm_90`, `compute_120`."""


class LiveProbe:
    """This machine."""

    def basics(self) -> Basics:
        directory = Path.cwd()
        return Basics(
            arch=_arch(),
            kernel=platform.release(),
            system=platform.system() or "Linux",
            libc=_libc(),
            affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            disk_free=shutil.disk_usage(directory).free,
            directory=str(directory),
        )

    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    def read(self, path: str) -> str | None:
        try:
            with Path(path).open("rb") as file:
                return file.read(_READ_LIMIT).decode("utf-8", "replace")
        except OSError:
            return None

    def list(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208  (names, not paths)
        except OSError:
            return ()

    def which(self, name: str) -> str | None:
        return shutil.which(name)

    def run(self, args: Sequence[str], timeout: float) -> CommandResult:
        environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
        _log.debug("asking %s", shlex.join(args))
        try:
            process = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            return CommandResult(outcome=CommandOutcome.MISSING)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _abandon(process)
            return CommandResult(outcome=CommandOutcome.TIMED_OUT)
        text = output.decode("utf-8", "replace")
        return CommandResult(outcome=CommandOutcome.FAILED if process.returncode else CommandOutcome.DONE, output=text)

    def nvml(self, timeout: float) -> CommandResult:
        try:
            ctypes.CDLL(_NVML)
        except OSError:
            return CommandResult(outcome=CommandOutcome.MISSING)
        return self.run((sys.executable, "-m", "torchtailor.advise.host.nvml"), timeout)

    def gpu_code(self, path: str) -> tuple[str, ...]:
        library = Path(path)
        if not library.is_file():
            return ()
        from torchtailor.code.gpucode.scan import scan_file

        targets = {image.target for image in scan_file(library).images if image.target is not None}
        ranked = sorted(targets, key=lambda target: (target.kind.value != "sm", target.capability, target.suffix.value))
        return tuple(str(target) for target in ranked)


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill a command's whole group and go on: one that hangs inside the driver cannot be waited for."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=0.2)
    except (OSError, subprocess.TimeoutExpired):
        return


def _arch() -> str:
    """The architecture of programs here: the kernel's, unless this Python has only 32 bits."""
    machine = platform.machine()
    return _OF_32_BITS.get(machine, machine) if sys.maxsize < 1 << 32 else machine


def _libc() -> str:
    """`glibc 2.36` where the C library is GNU's."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a machine answered. A text may be written as a list of its lines."""

    schema: str = RECORDING
    about: str = ""
    basics: Basics
    env: dict[str, str] = {}
    files: dict[str, str | tuple[str, ...]] = {}
    folders: dict[str, tuple[str, ...]] = {}
    programs: dict[str, str] = {}
    commands: dict[str, CommandResult] = {}
    nvml: CommandResult = CommandResult(outcome=CommandOutcome.MISSING)
    gpu_code: dict[str, tuple[str, ...]] = {}


class ReplayProbe:
    """A machine that was recorded."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @classmethod
    def load(cls, path: Path) -> ReplayProbe:
        try:
            recording = msgspec.json.decode(read_limited(path, Limit.MANIFEST), type=shaped(Recording))
        except (OSError, BadInputError, RecursionError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{path} is not a recording of a machine: {error}.", "Make one with `torchtailor detect --record FILE`."
            ) from error
        return cls(recording)

    def basics(self) -> Basics:
        return self._recording.basics

    def env(self, name: str) -> str | None:
        return self._recording.env.get(name)

    def read(self, path: str) -> str | None:
        text = self._recording.files.get(path)
        return text if text is None or isinstance(text, str) else "\n".join(text) + "\n"

    def list(self, path: str) -> tuple[str, ...]:
        return self._recording.folders.get(path, ())

    def which(self, name: str) -> str | None:
        return self._recording.programs.get(name)

    def run(self, args: Sequence[str], timeout: float) -> CommandResult:
        return self._recording.commands.get(" ".join(args), CommandResult(outcome=CommandOutcome.MISSING))

    def nvml(self, timeout: float) -> CommandResult:
        return self._recording.nvml

    def gpu_code(self, path: str) -> tuple[str, ...]:
        return self._recording.gpu_code.get(path, ())


class RecordingProbe:
    """Asks another probe and keeps what it answered."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._lock = Lock()
        self._env: dict[str, str] = {}
        self._files: dict[str, str | tuple[str, ...]] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._programs: dict[str, str] = {}
        self._commands: dict[str, CommandResult] = {}
        self._nvml = CommandResult(outcome=CommandOutcome.MISSING)
        self._gpu_code: dict[str, tuple[str, ...]] = {}

    def recording(self, about: str) -> Recording:
        return Recording(
            about=about,
            basics=self.basics(),
            env=_sorted(self._env),
            files=_sorted(self._files),
            folders=_sorted(self._folders),
            programs=_sorted(self._programs),
            commands=_sorted(self._commands),
            nvml=self._nvml,
            gpu_code=_sorted(self._gpu_code),
        )

    def basics(self) -> Basics:
        return self._probe.basics()

    def env(self, name: str) -> str | None:
        value = self._probe.env(name)
        if value is not None:
            with self._lock:
                self._env[name] = value
        return value

    def read(self, path: str) -> str | None:
        text = self._probe.read(path)
        if text is not None:
            with self._lock:
                self._files[path] = tuple(text.removesuffix("\n").split("\n"))
        return text

    def list(self, path: str) -> tuple[str, ...]:
        names = self._probe.list(path)
        if names:
            with self._lock:
                self._folders[path] = names
        return names

    def which(self, name: str) -> str | None:
        path = self._probe.which(name)
        if path is not None:
            with self._lock:
                self._programs[name] = path
        return path

    def run(self, args: Sequence[str], timeout: float) -> CommandResult:
        ran = self._probe.run(args, timeout)
        with self._lock:
            self._commands[" ".join(args)] = ran
        return ran

    def nvml(self, timeout: float) -> CommandResult:
        ran = self._probe.nvml(timeout)
        self._nvml = ran
        return ran

    def gpu_code(self, path: str) -> tuple[str, ...]:
        codes = self._probe.gpu_code(path)
        with self._lock:
            self._gpu_code[path] = codes
        return codes


def _sorted(table: Mapping[str, T]) -> dict[str, T]:
    return dict(sorted(table.items()))
