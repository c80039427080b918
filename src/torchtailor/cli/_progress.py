"""How a build is shown while it runs: bars on a terminal, lines where there is none, nothing when quiet."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class BuildBars:
    """Bytes fetched, files under way, stages; safe to be told from several threads."""

    def __init__(self, download: int, *, quiet: bool, plain: bool) -> None:
        self._download, self._quiet, self._plain = download, quiet, plain
        self._bars: Progress | None = None
        self._total: TaskID | None = None
        self._files: dict[str, TaskID] = {}
        self._already: dict[str, int] = {}
        self._work: TaskID | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> BuildBars:
        import sys

        from torchtailor import ui

        if not self._quiet and not self._plain and sys.stderr.isatty():
            self._bars = ui.progress()
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def _say(self, text: str) -> None:
        from torchtailor import ui

        if not self._quiet and self._bars is None:
            ui.err().print(text, markup=False)

    def stage(self, text: str) -> None:
        if self._bars:
            self._bars.console.print(text, markup=False)
        self._say(text)

    def started(self, filename: str, size: int | None, already: int) -> None:
        from torchtailor import ui

        rest = f", {ui.human_bytes(already)} of it here" if already else ""
        self._say(f"  {filename} ({ui.human_bytes(size) if size else 'size unknown'}{rest})")
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
        self._say(f"  {filename}: begun again")
        with self._lock:
            if self._bars and filename in self._files:
                self._bars.reset(self._files[filename])

    def finished(self, filename: str) -> None:
        with self._lock:
            if self._bars and filename in self._files:
                self._bars.remove_task(self._files.pop(filename))

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


def _short(filename: str) -> str:
    return "-".join(filename.split("-")[:2])
