"""The bar of long work: there from its first second, with the library and the time that is left; lines elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest
from rich.console import Console

from torchtailor.cli import verify
from torchtailor.cli.ui import bar, console
from torchtailor.core.progress import Progress
from torchtailor.verification.inspection.inspect import inspect
from torchtailor.verification.verify import verify as verify_artifact

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time; nothing waits for it."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    yield now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> io.StringIO:
    """A terminal of 80 columns, to which progress goes."""
    file = io.StringIO()
    window = Console(file=file, width=80, force_terminal=True, color_system=None, get_time=lambda: clock[0])
    monkeypatch.setattr(console, "err", lambda: window)
    monkeypatch.setattr(bar, "err", lambda: window)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    return file


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A file, to which progress goes."""
    file = io.StringIO()
    monkeypatch.setattr(bar, "err", lambda: Console(file=file, width=1000))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    return file


def drawn(terminal: io.StringIO) -> str:
    """What is new on the terminal."""
    text = terminal.getvalue()
    terminal.seek(0)
    terminal.truncate()
    return text


def test_the_bar_is_there_before_anything_is_done(terminal: io.StringIO, clock: list[float]) -> None:
    with bar.ProgressBar(quiet=False) as shown:
        assert "Looking at files" in drawn(terminal)
        shown.begin("Reading libraries", 4_000)
        assert "Reading libraries" in (first := drawn(terminal)) and "0%" in first
        clock[0] += 1
        shown.reading("libtorch_cuda.so")
        assert "libtorch_cuda.so" in drawn(terminal)


def test_the_bar_tells_the_time_that_is_left(terminal: io.StringIO, clock: list[float]) -> None:
    with bar.ProgressBar(quiet=False) as shown:
        shown.begin("Reading libraries", 4_000)
        for _ in range(3):
            clock[0] += 10
            shown.advance(1_000)
        clock[0] += 1
        shown.reading("libtorch_cpu.so")
    last = drawn(terminal)
    assert "75%" in last and "0:00:10" in last and "libtorch_cpu.so" in last
    assert all(len(line) <= 80 for line in last.replace("\r", "\n").split("\n"))


def test_a_line_a_minute_where_nobody_watches(log: io.StringIO, clock: list[float]) -> None:
    with bar.ProgressBar(quiet=False) as shown:
        shown.begin("Reading host code", 4_000_000)
        for second in range(300):
            clock[0] += 1
            shown.advance(10_000)
            shown.reading(f"lib{second}.so")
    lines = log.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("Reading host code: 600 kB of 4 MB")


def test_what_takes_long_is_said_at_once(log: io.StringIO, clock: list[float]) -> None:
    """A refusal came after 43 seconds without a word."""
    with bar.ProgressBar(quiet=False) as shown:
        shown.begin("Reading libraries", 4_000_000_000)
        assert log.getvalue() == "Reading libraries: 4 GB ...\n"
        shown.begin("Reading names", 4_000)
    assert len(log.getvalue().splitlines()) == 1


def soon_drawn(terminal: io.StringIO, text: str) -> str:
    """What a thread draws."""
    said = ""
    for _ in range(200):
        said += drawn(terminal)
        if text in said:
            break
        sleep(0.02)
    return said


def test_a_plan_says_that_it_asks_the_indexes(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Asking the package indexes"
    with console.working(text):
        assert text in soon_drawn(terminal, text)
    drawn(terminal)
    with console.working(text, quiet=True):
        assert not drawn(terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(console, "_LONG", 0.01)
    with console.working(text):
        assert soon_drawn(terminal, "...") == f"{text} ...\n"


@pytest.mark.parametrize("plain", [False, True])
def test_verify_says_something_each_minute(log: io.StringIO, clock: list[float], plain: bool) -> None:
    with verify._VerifyBar(plain=plain) as shown:
        shown.begin("Reading libraries", 1_000)
        clock[0] += 61
        shown.advance(10)
    assert (len(log.getvalue().splitlines()) == 1) is not plain  # --plain has a line for each library


class Told(Progress):
    """What work said, in order."""

    def __init__(self) -> None:
        self.work: dict[str, list[int]] = {}
        self.names: list[str] = []

    def begin(self, what: str, total: int) -> None:
        self.work[what] = [total, 0]
        self.what = what

    def advance(self, size: int) -> None:
        self.work[self.what][1] += size

    def reading(self, library: str) -> None:
        self.names.append(library)


def test_every_part_of_a_verification_is_counted() -> None:
    """Host code takes longest; it stood at 100 % meanwhile."""
    told = Told()
    verify_artifact(FIXTURES / "size.so", level="static", progress=told)
    assert set(told.work) >= {"Reading libraries", "Reading host code"}
    assert all(total == done > 0 for total, done in told.work.values())


def test_names_are_of_libraries() -> None:
    told = Told()
    inspect(FIXTURES, gpus="9.0", progress=told)
    assert {"size.so", "places-relr.so"} <= set(told.names)
    assert all(total == done > 0 for total, done in told.work.values())
