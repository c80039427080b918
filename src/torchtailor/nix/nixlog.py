"""Nix's structured log (`--log-format internal-json`): current build, progress, and the output of each build."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from torchtailor.core.progress import NixProgress
from torchtailor.core.shapes import shaped

PREFIX = "@nix "
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NINJA = re.compile(r"\[\s*(\d+)/(\d+)\]")
_DERIVATION = re.compile(r"[0-9a-z]{32}-(.+)\.drv$")
_TAIL = 200

# Numbers of Nix's logging.hh
_BUILDS, _BUILD = 104, 105
_LOG_LINE, _SET_PHASE, _PROGRESS, _POST_LINE = 101, 104, 105, 107


class _Event(msgspec.Struct):
    """One line of the log, with the fields that are used here."""

    action: str
    id: int = 0
    type: int = 0
    level: int = 0
    text: str = ""
    msg: str = ""
    raw_msg: str = ""
    fields: list[int | str] = []


@dataclass
class _Build:
    name: str
    file: IO[str] | None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))


class NixLog:
    """Reads the log line by line, and writes the output of each build to its own file."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.logs: dict[str, Path] = {}
        self.messages: list[str] = []
        self._builds: dict[int, _Build] = {}
        self._counter = 0
        self._progress = NixProgress(0, 0, "", "", 0, 0)
        self._last_tail: deque[str] = deque(maxlen=_TAIL)

    @property
    def progress(self) -> NixProgress:
        return self._progress

    @property
    def errors(self) -> str:
        """Nix's own messages, without colours."""
        return "\n".join(self.messages)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that builds printed."""
        return tuple(self._last_tail)

    def feed(self, line: str) -> bool:
        """Read one line; returns whether the progress changed."""
        line = line.rstrip("\n")
        before = self._progress
        if not line.startswith(PREFIX):  # output of Flox, and of Nix before its log begins
            self.messages.append(_COLOURS.sub("", line))
            self._line(0, line)
            return self._progress != before
        try:
            event = msgspec.json.decode(line[len(PREFIX) :], type=shaped(_Event), strict=False)
        except msgspec.MsgspecError:
            self.messages.append(line)
            return False
        self._take(event)
        return self._progress != before

    def close(self) -> None:
        for build in self._builds.values():
            if build.file:
                build.file.close()
        self._builds.clear()

    def _take(self, event: _Event) -> None:
        if event.action == "start" and event.type == _BUILDS:
            self._counter = event.id
        elif event.action == "start" and event.type == _BUILD:
            self._start(event)
        elif event.action == "stop":
            build = self._builds.pop(event.id, None)
            if build and build.file:
                build.file.close()
        elif event.action == "result":
            self._result(event)
        elif event.action == "msg" and event.level <= 1:  # errors and warnings
            self.messages.append(_COLOURS.sub("", event.msg or event.raw_msg))

    def _start(self, event: _Event) -> None:
        drv = str(event.fields[0]) if event.fields else event.text
        match = _DERIVATION.search(drv)
        name = match[1] if match else drv
        file = None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{name}.log"
            self.logs[name] = path
            file = path.open("w", encoding="utf-8", errors="replace")
        self._builds[event.id] = _Build(name, file)
        self._update(current=name, phase="", step=0, steps=0)

    def _result(self, event: _Event) -> None:
        if event.type in (_LOG_LINE, _POST_LINE) and event.fields:
            self._line(event.id, str(event.fields[0]))
        elif event.type == _SET_PHASE and event.fields:
            build = self._builds.get(event.id)
            self._update(current=build.name if build else self._progress.current, phase=str(event.fields[0]))
        elif event.type == _PROGRESS and event.id == self._counter and len(event.fields) >= 2:
            self._update(builds_done=int(event.fields[0]), builds_expected=int(event.fields[1]))

    def _line(self, activity: int, text: str) -> None:
        text = _COLOURS.sub("", text)
        self._last_tail.append(text)
        build = self._builds.get(activity)
        if build and build.file:
            build.file.write(text + "\n")
        if match := _NINJA.search(text):
            current = build.name if build else self._progress.current
            self._update(current=current, step=int(match[1]), steps=int(match[2]))

    def _update(self, **changes: int | str) -> None:
        values = {name: getattr(self._progress, name) for name in NixProgress.__slots__}
        self._progress = NixProgress(**{**values, **changes})
