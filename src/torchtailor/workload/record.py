"""Runs a program under the recorder and makes a trace of what it and its child processes loaded."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.core.disk import CACHE_VARIABLE, cache_folder, disk_errors, is_free, write_atomically
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError, NoMatchError, UsageError
from torchtailor.workload.caches import Caches, GpusAndDriver, caching_environment, note_caches
from torchtailor.workload.events import PAGES_SUFFIX, make_trace, read_events
from torchtailor.workload.hook import HookKind, check_program, hook_library
from torchtailor.workload.moved_modules import INDEX_VARIABLE
from torchtailor.workload.trace import Trace

RECORD_VARIABLE = "TORCHTAILOR_RECORD"
PRELOAD = "LD_PRELOAD"
AUDIT = "LD_AUDIT"
_PATIENCE = 20.0  # seconds for what processes write after their end, before it counts as lost
_SEPARATOR = re.compile(r"[ :]")
_MACHINES = {"x86_64": ElfMachine.X86_64, "aarch64": ElfMachine.AARCH64}


@dataclass(frozen=True)
class RecordedRun:
    """What a program used, and how it ended."""

    trace: Trace
    exit_code: int
    caches: Caches | None = None


def record_program(
    command: Sequence[str],
    *,
    stdout: IO[str] | None = None,
    caches: Path | None = None,
    machine: Callable[[], GpusAndDriver] = lambda: ((), ""),
) -> RecordedRun:
    """Run a program to its end; its input, output (unless `stdout` is given) and signals are its own."""
    if not command:
        raise UsageError(
            "No program was given.", "Write it after `--`: torchtailor record -o app.trace -- python app.py"
        )
    check_startable(command[0])
    # What the program leaves running in the background may still write to the folder.
    with tempfile.TemporaryDirectory(prefix="torchtailor-record-", ignore_cleanup_errors=True) as folder:
        environment = recording_environment(Path(folder)) | (caching_environment(caches) if caches else {})
        code = run_program(command, environment, stdout)
        _wait_for_pages(Path(folder))
        events = read_events(Path(folder).iterdir())
        kept = note_caches(caches, events.opened, machine) if caches else None
        return RecordedRun(make_trace(events, [shlex.join(command)], _import_roots()), code, kept)


def recording_environment(folder: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which a program, and whatever it starts, records to a folder."""
    auditing = _with_library(HookKind.AUDIT, AUDIT, with_preload(environment))
    # modules from an index open no files that tell which they are
    return {**auditing, INDEX_VARIABLE: "0", RECORD_VARIABLE: str(folder)}


def with_preload(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which a program gets the hook, whatever else is preloaded."""
    return _with_library(HookKind.PRELOAD, PRELOAD, environment)


def _with_library(kind: HookKind, variable: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the dynamic linker loads one of our libraries, before whatever else they name."""
    hook = str(_preloadable(hook_library(this_machine(), kind)))
    others = [part for part in environment.get(variable, "").replace(" ", ":").split(":") if part and part != hook]
    return {**environment, variable: ":".join([hook, *others])}


def _wait_for_pages(folder: Path) -> None:
    """What a process touched is written after its end, by a process that holds a lock until that is done."""
    until = time.monotonic() + _PATIENCE
    for path in folder.glob(f"*{PAGES_SUFFIX}"):
        with path.open("rb") as file:
            while not is_free(file.fileno()) and time.monotonic() < until and not _is_alive(path):
                time.sleep(0.01)


def _is_alive(record: Path) -> bool:
    """Whether the process that a record is of still runs, in the background: nobody waits for it."""
    number, start = record.name.split("-")[:2]
    try:
        fields = Path("/proc", number, "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == start and fields[0] not in "ZX"


def _preloadable(hook: Path) -> Path:
    """The hook, or a copy of it: the loader splits LD_PRELOAD at spaces and colons."""
    if not _SEPARATOR.search(str(hook)):
        return hook
    content = hook.read_bytes()
    copy = cache_folder() / "hooks" / hashlib.sha256(content).hexdigest()[:16] / hook.name
    if _SEPARATOR.search(str(copy)):
        raise EnvironmentProblem(
            f"{hook} cannot be preloaded: its path contains a space or a colon.",
            f"Set {CACHE_VARIABLE} to a folder whose path contains neither.",
        )
    if not copy.is_file():
        with disk_errors(copy.parent):
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, content)
    return copy


def this_machine() -> ElfMachine:
    machine = _MACHINES.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        raise ImpossibleError(
            f"Programs cannot be recorded on {platform.system()} {platform.machine()}.",
            "Record on the Linux machine that runs the program.",
        )
    return machine


def check_startable(name: str) -> None:
    """Refuse a program that does not exist, or that no hook can get into."""
    if shutil.which(name) is None:
        if "/" in name and Path(name).exists():
            raise EnvironmentProblem(f"{name} cannot be started: it is not executable.", "Start it by its interpreter.")
        raise NoMatchError(f"There is no program {name}.", "Check its name, or give its path.")
    check_program(name)


@contextmanager
def _signals_left_to_child() -> Iterator[None]:
    """The terminal sends Ctrl-C to both; the program decides what it means."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_program(command: Sequence[str], environment: Mapping[str, str], stdout: IO[str] | None) -> int:
    """Run a program to its end; signals go to it."""
    try:
        child = subprocess.Popen(list(command), env=dict(environment), stdout=stdout)
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}.", "Check its path.") from error

    def forward(number: int, _: object) -> None:
        child.send_signal(number)

    with _signals_left_to_child():
        before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
        for one, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(one, forward)
        try:
            code = child.wait()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
    return code if code >= 0 else 128 - code


def trace_of(places: Iterable[Path]) -> Trace:
    """The trace of what processes recorded to folders or files."""
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            own = [path for path in place.iterdir() if path.suffix in (".tsv", PAGES_SUFFIX)]
            if not own:
                raise NoMatchError(
                    f"No program recorded anything to {place}.",
                    f"Give the folder that {RECORD_VARIABLE} named, after the program has run.",
                )
            files += own
        elif place.is_file():
            files.append(place)
        else:
            raise NoMatchError(
                f"There is no file or folder {place}.",
                f"Give the folder that {RECORD_VARIABLE} named, or the misses.tsv of a program that was cut.",
            )
    return make_trace(read_events(files), roots=_import_roots())


def _import_roots() -> list[Path]:
    return [Path(part) for part in os.environ.get("PYTHONPATH", "").split(":") if part]
