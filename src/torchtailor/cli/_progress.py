"""A build while it runs: bars on a terminal, lines where there is none, nothing when quiet."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from torchtailor.cli import ui
from torchtailor.core.format import counted
from torchtailor.core.progress import CompileProgress, NixProgress, Progress

if TYPE_CHECKING:
    from rich.progress import TaskID


class BuildDisplay(Progress):
    """Shows the progress of a build on stderr; may be called from several threads."""

    def __init__(self, *, quiet: bool, plain: bool) -> None:
        self._quiet = quiet
        self._bars = ui.progress() if not quiet and not plain and sys.stderr.isatty() else None
        self._download = 0
        self._total: TaskID | None = None
        self._files: dict[str, TaskID] = {}
        self._work: TaskID | None = None
        self._last = ("", 0)  # what the last line of a build without bars was about
        self._lock = threading.Lock()

    def __enter__(self) -> BuildDisplay:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def stage(self, text: str) -> None:
        self._last = ("", 0)
        if self._bars:
            self._bars.console.print(text, markup=False, soft_wrap=True)
        self._line(text)

    def _line(self, text: str) -> None:
        if not self._quiet and self._bars is None:
            ui.err().print(text, markup=False, soft_wrap=True)

    # Downloads

    def expected(self, size: int) -> None:
        self._download = size

    def started(self, filename: str, size: int | None, already: int) -> None:
        rest = f", {ui.human_bytes(already)} of it cached" if already else ""
        self._line(f"  {filename} ({ui.human_bytes(size) if size else 'size unknown'}{rest})")
        with self._lock:
            if self._bars is None:
                return
            if self._total is None:
                self._total = self._bars.add_task("all wheels", total=self._download)
            self._files[filename] = self._bars.add_task(_short(filename), total=size, completed=already)

    def advanced(self, filename: str, size: int) -> None:
        with self._lock:
            if self._bars and self._total is not None:
                self._bars.advance(self._files[filename], size)
                self._bars.advance(self._total, size)

    def restarted(self, filename: str) -> None:
        self._line(f"  {filename}: restarted")
        with self._lock:
            if self._bars and filename in self._files:
                self._bars.reset(self._files[filename])

    def finished(self, filename: str) -> None:
        with self._lock:
            if self._bars and filename in self._files:
                self._bars.remove_task(self._files.pop(filename))

    # Cuts

    def begin(self, what: str, total: int) -> None:
        with self._lock:
            if self._bars is None:
                return
            for task in (self._total, self._work):
                if task is not None:
                    self._bars.remove_task(task)
            self._total = None
            self._work = self._bars.add_task(_short(what), total=total)

    def advance(self, size: int) -> None:
        with self._lock:
            if self._bars and self._work is not None:
                self._bars.advance(self._work, size)

    # Builds from source and with Nix

    def compiling(self, progress: CompileProgress) -> None:
        slowest = ", ".join(f"{Path(file.output).name} {file.seconds:.0f} s" for file in progress.slowest)
        left = f", about {ui.human_seconds(progress.remaining)} left" if progress.remaining else ""
        memory = f", {ui.human_bytes(progress.memory)}" if progress.memory else ""
        files = counted(progress.total, "file")
        text = f"{progress.done} of {files}{memory}{left}" + (f"; at {slowest}" if slowest else "")
        if self._bars:
            self._update(text, progress.done, progress.total)
            return
        # A line for each tenth; ninja finds more files when code was generated, and counts anew.
        tenth = int(progress.percent // 10)
        if files != self._last[0]:
            self._last = (files, tenth)
        elif tenth > self._last[1]:
            self._last = (files, tenth)
            self._line(text)

    def nix_progress(self, progress: NixProgress) -> None:
        if self._bars:
            self._update(str(progress), progress.step, progress.steps or None)
            return
        phase = f"{progress.current} {progress.phase}".strip()
        if phase and phase != self._last[0]:
            self._last = (phase, 0)
            self._line(phase)

    def _update(self, text: str, done: int, total: int | None) -> None:
        assert self._bars is not None
        if self._work is None:
            self._work = self._bars.add_task("", total=total)
        self._bars.update(self._work, description=text, completed=done, total=total)


def _short(filename: str) -> str:
    return "-".join(filename.split("-")[:2])
