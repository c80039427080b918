"""The engine of this process: the order of jobs, what is done together, and errors that end a run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.unit.building.conftest import Workshop
from tests.unit.farm.graphs import NamedJob, graph
from tests.waiting import LONG
from torchtailor.building.graph.drive import drive
from torchtailor.building.graph.events import JobOutcome
from torchtailor.building.graph.graph import GraphJob, JobGraph
from torchtailor.building.graph.here import Here, run_each, run_here
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.core.errors import NetworkError
from torchtailor.surgery.cut import Cut


def labels(jobs: Sequence[GraphJob]) -> list[str]:
    return [job.label for job in jobs]


def test_jobs_run_when_their_inputs_are_there_and_one_kind_at_once() -> None:
    edges = {"a": (), "b": (), "cut a": ("a",), "cut b": ("b",), "pack": ("cut a", "cut b")}
    ran: list[list[str]] = []

    class Fetch(NamedJob):
        kind = "fetch"

    jobs = [(Fetch if not needs else NamedJob).make(name, needs, 1.0 + len(name), 1) for name, needs in edges.items()]
    run_here(JobGraph(jobs), lambda batch: ran.append(labels(batch)), together="fetch")
    assert [sorted(batch) for batch in ran] == [["a", "b"], ["cut a"], ["cut b"], ["pack"]]


def test_an_error_ends_the_run_as_it_is() -> None:
    ran: list[str] = []

    def run(jobs: Sequence[GraphJob]) -> None:
        ran.extend(labels(jobs))
        raise NetworkError("the line is cut.", "Wait.")

    with pytest.raises(NetworkError, match="the line is cut"):
        run_here(graph({"a": (), "b": ()}), run)
    assert ran == ["a"]  # it is not tried again, and no other job begins


def test_what_a_job_says_of_itself_is_heard() -> None:
    failed = JobOutcome(done=False, error="no", code=2)
    result = drive(graph({"a": (), "b": ("a",)}), Here(lambda _: failed), frozenset())
    assert {failure.outcome.error for failure in result.failed.values()} == {"no"} and len(result.never) == 1


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_each_gives_its_result_in_order_and_so_many_run_at_a_time(at_a_time: int) -> None:
    meet = threading.Barrier(at_a_time, timeout=LONG)

    def work(number: int) -> int:
        meet.wait()  # nobody goes on before so many have begun
        return number * number

    assert run_each((partial(work, number) for number in range(6)), at_a_time=at_a_time) == (0, 1, 4, 9, 16, 25)
    with pytest.raises(ZeroDivisionError):
        run_each([lambda: 1, lambda: 1 // 0], at_a_time=at_a_time)


def test_a_build_here_has_one_file_for_each_wheel(workshop: Workshop) -> None:
    """Nothing goes through a store: what is in the wheelhouse is a link to the cache."""
    workshop.build("sm80-avx2", "sm90-avx2", options=WheelOptions(cut=Cut(nvidia=True)))
    cache = {path.stat().st_ino for path in (workshop.root / "cache").rglob("*.whl")}
    made = [path.stat().st_ino for path in workshop.out.rglob("*.whl")]
    assert made and cache.issuperset(made)
    assert not (workshop.root / "cache" / "farm").exists()


def test_a_build_here_imports_no_cluster(tmp_path: Path) -> None:
    code = (
        "import sys, torchtailor.building.wheel.backend, torchtailor.building.source.backend, "
        "torchtailor.building.nix.backend; "
        "print([name for name in ('dask', 'distributed', 'fsspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
