"""Workers as they are, with real processes: late, lying, with a full disk, with a clock that is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.building.conftest import Shell
from tests.integration.farm import lies
from tests.integration.farm.clusters import running
from tests.integration.farm.test_cluster import Watched, plain, site, start, wanted
from tests.skips import needs_module
from tests.unit.building.test_build import NAME, tree
from tests.waiting import LONG, wait_until
from torchtailor.building.farm.perform import WorkerSetup
from torchtailor.building.graph.drive import WorkerNews
from torchtailor.building.graph.events import EventKind
from torchtailor.core.errors import ExitCode

__all__ = ["plain", "site", "wanted"]
pytestmark = [needs_module("distributed"), pytest.mark.xdist_group("farm")]

# Says that it has done its first job, and has not; the code, by which workers are compared, is the same.
LIAR = """
import torchtailor.building.farm.perform as perform
def lie(data, setup, answers=[b'{"done": true}', b'garbage', 7]):
    return answers.pop(0) if answers else real(data, setup)
real, perform.perform_sent = perform.perform_sent, lie
"""
CLOCK = "import time\nreal = time.time\ntime.time = lambda: real() + %d\n"


def test_a_late_worker_is_asked_again_and_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are stopped when they are asked: the third is used at once, and they are used when they go on."""
    from distributed import Client

    from torchtailor.building.farm.daskengine import DaskEngine

    monkeypatch.setattr("torchtailor.building.farm.daskengine._ANSWER", 4.0)
    seen: dict[EventKind, list[str]] = {kind: [] for kind in EventKind}
    with running(tmp_path, "one", "two", "three") as cluster, Client(cluster.address) as client:
        client.wait_for_workers(3)
        for name in ("one", "two"):
            cluster.workers[name].send_signal(signal.SIGSTOP)
        engine = DaskEngine(client, WorkerSetup(str(tmp_path / "store")))

        def look() -> None:
            for news in engine.wait(0.1):
                if isinstance(news, WorkerNews) and news.worker.helps:
                    seen[news.kind].append(news.text)

        def joined(count: int) -> bool:
            look()
            return len(seen[EventKind.WORKER_JOINED]) >= count

        # on a busy machine the third may be late too
        wait_until(lambda: joined(1) and len(seen[EventKind.WORKER_SILENT]) >= 2, "the third, and that two are late")
        assert all(text.endswith("has not answered yet; it is asked again.") for text in seen[EventKind.WORKER_SILENT])
        assert len(seen[EventKind.WORKER_JOINED]) == 1
        for name in ("one", "two"):
            cluster.workers[name].send_signal(signal.SIGCONT)
        wait_until(lambda: joined(3), "the others too")
        assert len([worker for worker in engine.known if worker.helps]) == 3
        engine.close()
    assert not seen[EventKind.WORKER_REFUSED] and not seen[EventKind.WORKER_LOST]


def test_workers_that_lie_or_live_in_another_year(shell: Shell, wanted: dict[str, str], tmp_path: Path) -> None:
    """What one says it has done is looked for; clocks of workers and of this machine are never compared."""
    for name, text in (("liar", LIAR), ("past", CLOCK % (-400 * 86400)), ("future", CLOCK % (400 * 86400))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    shell.environment["PYTHONPATH"] = str(tmp_path / "future")
    with running(tmp_path) as cluster:
        cluster.start_worker("liar", variables={"PYTHONPATH": str(tmp_path / "liar")})
        cluster.start_worker("past", variables={"PYTHONPATH": str(tmp_path / "past")})
        shell.site.gate.clear()
        build = Watched(start(shell, cluster.address))
        wait_until(lambda: len(build.seen("worker-joined")) == 3, "both workers are there")  # with this process
        shell.site.gate.set()
        result = build.end()
    assert tree(tmp_path / "dist") == wanted and result["failed"] == []
    assert len(build.seen("worker-set-aside")) == 1
    assert any("the store has no such output" in str(event["text"]) for event in build.seen("job-again"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fetch", "cut", "pack"])
@pytest.mark.parametrize("what", ["has other bytes", "has another hash", "is an earlier one"])
def test_a_worker_that_signs_something_else(
    kind: str, what: str, shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    """It has the secret of the store. The run gives the right bytes or ends with a sentence and nothing of the lie; the
    same command does the rest once it is gone."""
    shutil.copy(lies.__file__, tmp_path / "sitecustomize.py")
    with running(tmp_path) as cluster:
        liar = cluster.start_worker("liar", variables={"PYTHONPATH": str(tmp_path), lies.LIE: f"{kind} {what}"})
        build = Watched(start(shell, cluster.address, "--prove"))
        out = build.process.communicate()[0]
        print(build.process.returncode, out[:2000], [e.get("text") for e in build.events if e.get("text")])
        assert build.process.returncode in (0, ExitCode.ENVIRONMENT, ExitCode.CHECK_FAILED)
        assert "Traceback" not in "".join(build.other) and not build.seen("log")
        for name, sha256 in tree(tmp_path / "dist").items():
            assert wanted[name] == sha256
        cluster.start_worker("honest")
        cluster.kill(liar)
        Watched(start(shell, cluster.address, "--prove")).end()
    assert tree(tmp_path / "dist") == wanted


def test_where_every_disk_is_full_it_says_so_and_goes_on_when_there_is_room(
    shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    with running(tmp_path) as cluster:
        for name in ("one", "two"):
            cluster.start_worker(name, file_size=50_000)
        began = time.monotonic()
        stopped = Watched(start(shell, cluster.address)).end(ExitCode.ENVIRONMENT)
        assert "cannot be written" in str(stopped["failed"]) or "disk is full" in str(stopped["failed"])
        assert time.monotonic() - began < LONG
        for worker in cluster.workers.values():
            cluster.kill(worker)
        cluster.start_worker("three")
        Watched(start(shell, cluster.address)).end()
    assert tree(tmp_path / "dist") == wanted


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_store_that_fills_up_in_the_middle(shell: Shell, wanted: dict[str, str], tmp_path: Path) -> None:
    """It is said in a sentence, and nothing half done stays; with room, the same command goes on with what was done."""
    store, filler = tmp_path / "store", tmp_path / "store" / "of-somebody-else"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600M", "tmpfs", str(store)], check=True)
    try:
        with running(tmp_path, "one", "two") as cluster:
            shell.site.gate.clear()
            build = Watched(start(shell, cluster.address))
            wait_until(lambda: shell.site.waiting >= 2, "both workers download")
            with suppress(OSError), filler.open("wb", 0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            shell.site.gate.set()
            began = time.monotonic()
            stopped = build.end(ExitCode.ENVIRONMENT)
            assert time.monotonic() - began < 60
            assert "disk is full" in str(stopped) and "Traceback" not in "".join(build.other)
            assert not (tmp_path / "dist" / NAME).exists()
            filler.unlink()
            Watched(start(shell, cluster.address)).end()
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)
    assert tree(tmp_path / "dist") == wanted
