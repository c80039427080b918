"""A build from source in shards: two workers that share nothing but objects, a store and their compiler."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.building.source.conftest import build, catalog, ledger, project, request_for, variant, work
from tests.integration.building.source.test_bundle import WITH_OPENMP
from tests.integration.farm.clusters import DaskCluster, running
from tests.skips import needs_module
from tests.waiting import wait_until
from torchtailor.building.farm.build import FarmBuildResult, plan_farm, run_farm
from torchtailor.building.farm.store import open_farm_store
from torchtailor.building.farm.where import parse_where
from torchtailor.building.graph.events import EventKind, FarmEvent
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source.backend import SourcePlan
from torchtailor.building.source.options import SourceOptions
from torchtailor.building.source.plan import MatrixPlan, SourceCost, VariantGroup
from torchtailor.building.source.runner import SourceBuilder
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.errors import EnvironmentProblem

__all__ = ["build", "catalog", "ledger", "project", "variant", "work"]

pytestmark = [
    needs_module("distributed"),
    pytest.mark.xdist_group("source"),
    pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache here"),
]


@dataclass
class SourceFarm:
    """The small project on a farm."""

    catalog: Catalog
    variant: Variant
    project: Path
    work: Path
    root: Path
    ledger: Ledger

    def plan(self, **more: Any) -> SourcePlan:
        request = request_for(self.variant, self.project, self.work, self.root / "dist", **{"ccache": True, **more})
        matrix = MatrixPlan((VariantGroup(self.variant, ()),), SourceCost(1, 1))
        return SourcePlan(matrix, (SourceBuilder(self.catalog, request, ledger=self.ledger),), self.root / "dist")

    def run(
        self,
        on: str,
        objects: str,
        *,
        events: list[FarmEvent] | None = None,
        listen: Callable[[FarmEvent], None] | None = None,
        **more: Any,
    ) -> FarmBuildResult:
        where = parse_where(on, self.catalog)
        farm = plan_farm(
            self.plan(**more), where, store=str(self.root / "store"), objects=objects, shards=2, ledger=self.ledger
        )
        return run_farm(
            farm, self.catalog, ledger=self.ledger, listen=listen or (events if events is not None else []).append
        )


@pytest.fixture
def farm(catalog: Catalog, variant: Variant, project: Path, work: Path, tmp_path: Path, ledger: Ledger) -> SourceFarm:
    return SourceFarm(catalog, variant, project, work, tmp_path, ledger)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis of its own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, "Redis answers")
    try:
        yield f"redis://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def start_workers(cluster: DaskCluster, farm: SourceFarm, *names: str) -> None:
    """Each with a work folder and a cache of its own; only the tools are shared, which take long to install."""
    for name in names:
        own = farm.root / f"work-{name}"
        own.mkdir(exist_ok=True)
        if not (own / "env").exists():
            (own / "env").symlink_to(farm.work / "env")
        cluster.start_worker(name, variables={"TORCHTAILOR_WORK": str(own)})


def linked(result: FarmBuildResult) -> tuple[int, int]:
    """Hits and misses of the job that links."""
    ((_, outcome),) = [item for item in result.outcomes.values() if item[0].startswith("link")]
    return outcome.hits, outcome.misses


def library(house: Path) -> bytes:
    (wheel,) = (house / "wheels").glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("libtorch_cpu.so")]
        return archive.read(name)


def test_shards_of_two_workers_and_a_link_that_compiles_nothing(
    farm: SourceFarm, build: Any, redis: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """Through a real Redis; with Redis gone, the next build is slower, not wrong."""
    alone = build()
    address, server = redis
    with running(farm.root) as cluster:
        start_workers(cluster, farm, "one", "two")
        events: list[FarmEvent] = []
        done = farm.run(cluster.address, address, events=events)
        assert not done.failed, done.failed
        (house,) = done.wheelhouses
        shards = [outcome for label, outcome in done.outcomes.values() if label.startswith("compile")]
        assert [outcome.hits for outcome in shards] == [0, 0]
        assert sum(outcome.misses for outcome in shards) == 6 and all(outcome.misses for outcome in shards)
        assert linked(done) == (3, 0)  # the other worker's half; its own is in its folder already
        assert len({event.worker for event in events if event.job.startswith("compile") and event.worker}) == 2
        assert library(house.path) == library(alone.wheelhouses[0].path)
        manifest = json.loads((house.path / "manifest.json").read_bytes())
        assert str(farm.root) not in json.dumps(manifest)

        again = farm.run(cluster.address, address)
        assert again.outcomes == {} and len(again.wheelhouses) == 1

        def lose_redis(event: FarmEvent) -> None:
            if event.kind is EventKind.JOB_STARTED and event.job.startswith("compile"):
                server.kill()
                server.wait()

        other = farm.run(cluster.address, address, listen=lose_redis, overrides=("USE_THING=3", "BLAS=OpenBLAS"))
        assert not other.failed
        assert library(other.wheelhouses[0].path) == library(house.path)

        with pytest.raises(EnvironmentProblem, match=r"objects redis://127\.0\.0\.1:\d+ cannot be reached: Conn"):
            farm.run("local:1", address, overrides=("USE_THING=4",))


def test_a_broken_file_is_diagnosed_and_its_log_comes_back(farm: SourceFarm, tmp_path: Path) -> None:
    source = farm.project / "c10" / "a.cpp"
    source.write_text(source.read_text() + "\nint broken = no_such_name;\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "env").symlink_to(farm.work / "env")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHTAILOR_WORK", str(tmp_path / "work"))
        events: list[FarmEvent] = []
        done = farm.run("here", str(tmp_path / "objects"), events=events)
    (failure,) = done.failed.values()
    assert failure.job.label.startswith("compile") and "no_such_name" in failure.outcome.error
    starts = [event for event in events if event.kind is EventKind.JOB_STARTED and event.job == failure.job.label]
    assert len(starts) == 2
    (job,) = [job for job in farm.ledger.jobs() if job.log]
    assert "no_such_name" in Path(job.log).read_text()
    assert failure.outcome.hint.endswith(f"The log is {job.log}.")  # not the file that is on the worker
    (attempt,) = farm.ledger.attempts()
    assert attempt.log == job.log  # which `torchtailor doctor` reads
    assert not (tmp_path / "dist").exists() or not any((tmp_path / "dist").iterdir())


def test_some_targets_only(farm: SourceFarm, tmp_path: Path) -> None:
    """As for c10 of the real PyTorch: shards hold only what the targets need, and nothing is packed."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "env").symlink_to(farm.work / "env")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHTAILOR_WORK", str(tmp_path / "work"))
        done = farm.run("here", str(tmp_path / "objects"), targets=("torch_cpu",))
    assert not done.failed and done.wheelhouses == ()
    assert linked(done)[1] == 0
    assert open_farm_store(str(tmp_path / "store")).finished(done.outcomes) == frozenset(done.outcomes)
    assert SourceOptions().objects == ""


def test_what_was_bundled_where_it_was_linked(farm: SourceFarm, build: Any, tmp_path: Path) -> None:
    """The farm's wheel brings the same libraries as that of one machine, under the same tag, byte for byte."""
    with (farm.project / "CMakeLists.txt").open("a") as file:
        file.write(WITH_OPENMP)
    alone = build(bundle=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "env").symlink_to(farm.work / "env")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHTAILOR_WORK", str(tmp_path / "work"))
        done = farm.run("here", str(tmp_path / "objects"), bundle=True)
    assert not done.failed, done.failed
    own, farmed = (house.path for house in (*alone.wheelhouses, *done.wheelhouses))
    first, second = (json.loads((path / "manifest.json").read_bytes()) for path in (own, farmed))
    assert [one["soname"] for one in first["bundle"]["libraries"]] == ["libgomp.so.1"]
    assert first["bundle"] == second["bundle"]
    wheels = [zipfile.ZipFile(next((path / "wheels").glob("*.whl"))) for path in (own, farmed)]
    assert wheels[0].filename and wheels[1].filename
    assert Path(wheels[0].filename).name == Path(wheels[1].filename).name
    contents = [{name: archive.read(name) for name in archive.namelist()} for archive in wheels]
    assert contents[0] == contents[1]
