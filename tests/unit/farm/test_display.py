"""The live table of a farm, as a terminal draws it."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.unit.farm.graphs import graph
from torchtailor.building.graph.events import EventKind, FarmEvent
from torchtailor.building.graph.policy import THIS_PROCESS
from torchtailor.cli import _farm_output, ui


@pytest.fixture(params=[(80, 24), (120, 50), (40, 12)])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    width, height = request.param
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    monkeypatch.setattr(ui, "err", lambda: console)
    monkeypatch.setattr("torchtailor.cli.ui.console.out", lambda: console)
    return console


def display() -> Any:
    plan: Any = SimpleNamespace(to_do=graph({}), where=SimpleNamespace(name="rack"))
    return _farm_output.FarmDisplay(plan, quiet=True, plain=False, as_json=False)


def drawn(console: Console, shown: Any) -> list[str]:
    with console.capture() as captured:
        console.print(shown._table())
    return captured.get().rstrip("\n").split("\n")


def test_the_table_fits_the_window_with_any_number_of_workers(window: Console) -> None:
    shown = display()
    assert drawn(window, shown) == ["Waiting for workers of rack ..."]
    for number in range(200):
        worker = f"node{number:03}.cluster.example:4{number:04}"
        shown(FarmEvent(EventKind.WORKER_JOINED, 1.0, worker=worker))
        if number > 150:
            for job in range(3):
                label = f"compile pytorch210-python313-cuda13_0-sm90-avx512 host {job} of 99"
                standing = {"done": 1, "running": 2, "waiting": 3, "failed": 0}
                event = FarmEvent(EventKind.JOB_STARTED, 1.0, worker, label, f"{number}/{job}", standing=standing)
                shown(event)
    lines = drawn(window, shown)
    assert len(lines) < window.height
    assert all(len(line) <= window.width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "workers more; 1 done, 2 running, 3 waiting, 0 failed" in text
    assert "compile" in lines[3]  # the busy ones first, each in one line
    for number in range(199):
        shown(FarmEvent(EventKind.WORKER_LOST, 2.0, worker=f"node{number:03}.cluster.example:4{number:04}"))
    assert "more" not in " ".join(drawn(window, shown)) and len(drawn(window, shown)) < 9


def test_the_table_says_that_nobody_is_there_and_when_the_run_ends(
    window: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("torchtailor.cli._farm_output.time.monotonic", lambda: clock[0])
    shown = display()
    shown(FarmEvent(EventKind.WORKER_JOINED, 0.0, worker=THIS_PROCESS))
    assert drawn(window, shown) == ["Waiting for workers of rack ..."]
    shown(FarmEvent(EventKind.WAITING, 10.0, text="No worker has come yet.", seconds=3590.0))
    clock[0] = 590.0
    assert "the run ends in 50 min 0 s if none comes" in " ".join(" ".join(drawn(window, shown)).split())
    shown(FarmEvent(EventKind.WORKER_JOINED, 600.0, worker="node1:1"))
    assert "the run ends" not in " ".join(drawn(window, shown))
    standing = {"done": 0, "running": 0, "waiting": 3, "failed": 0}
    shown(FarmEvent(EventKind.WAITING, 700.0, text="All workers are gone.", seconds=60.0, standing=standing))
    assert "waiting for workers (the run ends in 60 s" in " ".join(" ".join(drawn(window, shown)).split())


def test_without_a_terminal_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    plan: Any = SimpleNamespace(to_do=graph({}), where=SimpleNamespace(name="rack"))
    shown = _farm_output.FarmDisplay(plan, quiet=False, plain=True, as_json=False)
    shown(FarmEvent(EventKind.WAITING, 10.0, text="All workers are gone.", seconds=590.0))
    said = " ".join(capsys.readouterr().err.split())
    assert said == "warning: All workers are gone. Waiting for workers; the run ends in 9 min 50 s if none comes."
