"""A farm on a real Dask cluster of worker processes: the same bytes, and what `kill -9` of anything leaves."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import torchtailor
from tests.integration.building.conftest import Shell
from tests.integration.farm.clusters import running
from tests.skips import needs_module
from tests.unit.building.stack import fill
from tests.unit.building.test_build import NAME, tree
from tests.unit.fetch.serving import Site, serve
from tests.waiting import LONG, processes_naming, wait_until
from torchtailor.building.farm.perform import WorkerSetup
from torchtailor.building.graph.drive import WorkerNews
from torchtailor.building.graph.events import EventKind
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

# one cluster at a time: a worker imports for seconds
pytestmark = [needs_module("distributed"), pytest.mark.xdist_group("farm")]

BUILD = ("build", "sm90-avx512", "sm80-avx2", "--release", "main", "--nvidia")


def on_farm(shell: Shell, where: str, *more: str) -> list[str]:
    return shell.line(*BUILD, "-o", "dist", "--on", where, "--store", "store", "--json", *more)


def start(shell: Shell, where: str, *more: str) -> subprocess.Popen[str]:
    return start_line(shell, on_farm(shell, where, *more))


def start_line(shell: Shell, line: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        line,
        cwd=shell.root,
        env=shell.environment | {"PYTHONFAULTHANDLER": "1"},  # `Watched` shows where a client crashed
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class Watched:
    """A build that runs, and its events as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, object]] = []
        self.other: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            if line.startswith("{"):
                self.events.append(json.loads(line))
            else:
                self.other.append(line)

    def seen(self, kind: str) -> list[dict[str, object]]:
        return [event for event in [*self.events] if event["kind"] == kind]

    def end(self, code: int = 0) -> dict[str, object]:
        assert self.process.stdout
        out = self.process.stdout.read()
        assert self.process.wait(LONG) == code, (self.other, out)
        self._reader.join(LONG)
        document: dict[str, object] = json.loads(out)
        return document


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One index for all tests: its address is in manifests."""
    with serve(Site()) as served:
        yield fill(served)


@pytest.fixture(scope="module")
def plain(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build without a farm."""
    shell = Shell(tmp_path_factory.mktemp("plain"), site)
    shell.torchtailor(*BUILD, "-o", "dist", "--quiet")
    return shell.root


@pytest.fixture
def wanted(plain: Path, shell: Shell) -> dict[str, str]:
    """What the build gives without a farm; of its cache, only what plans read is there."""
    for notes in ("facts", "pages"):
        shutil.copytree(plain / "cache" / notes, shell.root / "cache" / notes)
    shell.site.requests.clear()
    shell.site.waiting = 0
    shell.site.gate.set()
    return tree(plain / "dist")


def downloads(shell: Shell) -> Counter[str]:
    return Counter(
        request.path
        for request in shell.site.requests
        if request.path.endswith(".whl") and request.method == "GET" and request.status == 200
    )


def test_two_workers_survive_what_is_killed_and_give_the_same_bytes(
    shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    """A worker is killed while it downloads, then the scheduler; run the same command to resume."""
    site = shell.site
    with running(tmp_path, "one", "two") as cluster:
        site.gate.clear()
        first = Watched(start(shell, cluster.address))
        wait_until(lambda: site.waiting >= 2, "both workers download")
        victim = str(first.seen("job-started")[0]["worker"])
        cluster.kill_named(victim)
        lost = wait_until(lambda: first.seen("worker-lost"), "the loss is noticed")
        assert lost[0]["worker"] == victim
        cluster.start_worker("three")
        wait_until(lambda: len(first.seen("worker-joined")) >= 4, "a new worker is used")  # with this process
        site.gate.set()
        wait_until(lambda: first.seen("job-done"), "the first job is done")
        cluster.kill(cluster.scheduler)
        stopped = first.end(ExitCode.NETWORK)
        assert "does not answer any more" in str(stopped["error"]) and "same command" in str(stopped["hint"])
        assert not first.other and first.events[-1]["kind"] == "error"  # and no traceback of Dask's
        done = len(first.seen("job-done"))
        assert not (tmp_path / "dist" / NAME).exists()
        for worker in cluster.workers.values():
            if worker.poll() is None:
                cluster.kill(worker)

        cluster.start_scheduler()
        cluster.start_worker("four")
        second = Watched(start(shell, cluster.address))
        result = second.end()
    assert tree(tmp_path / "dist") == wanted
    assert result["failed"] == []
    ran = [str(job["label"]) for job in result["jobs"]]  # type: ignore[attr-defined]
    begun = next(event for event in first.events if "standing" in event)  # a warning may come before it
    assert 0 < len(ran) <= sum(begun["standing"].values()) - done  # type: ignore[attr-defined]
    assert set(downloads(shell).values()) <= {1, 2}  # again only what a killed worker had begun


def test_unusable_workers_are_refused_or_set_aside_with_words(
    shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    """One has other code, one cannot write large files, as on a full disk; the third does all the work."""
    package = Path(torchtailor.__file__).parent
    other = tmp_path / "other" / "torchtailor"
    shutil.copytree(package, other, ignore=shutil.ignore_patterns("*.so", "*.pyc.*"))
    changed = other / "core" / "format.py"
    changed.write_text(changed.read_text() + "\n# changed\n")

    with running(tmp_path) as cluster:
        cluster.start_worker("other-code", variables={"PYTHONPATH": str(other.parent)})
        cluster.start_worker("full", file_size=50_000)
        cluster.start_worker("good")
        shell.site.gate.clear()  # until both download
        build = Watched(start(shell, cluster.address))
        wait_until(lambda: shell.site.waiting >= 2, "both workers download")
        shell.site.gate.set()
        result = build.end()
    assert tree(tmp_path / "dist") == wanted
    (refused,) = build.seen("worker-refused")
    assert "other code of the same version" in str(refused["text"]) and "install the same" in str(refused["text"])
    (aside,) = build.seen("worker-set-aside")
    assert "cannot be written" in str(aside["text"])
    assert result["failed"] == []


def test_a_worker_with_a_nanny_proves_what_it_builds(shell: Shell, tmp_path: Path) -> None:
    """Nannies start daemonic processes, which may not have children: the proof is made without any."""
    always = "from torchtailor.core import processes\nprocesses._WORTH_PROCESSES = 0\n"  # however small the libraries
    (tmp_path / "sitecustomize.py").write_text(always)
    build = ("build", "sm90-avx512", "--release", "main", "--nvidia", "-o", "dist", "--prove", "--json")
    with running(tmp_path) as cluster:
        cluster.start_worker("nursed", nanny="--nanny", variables={"PYTHONPATH": str(tmp_path)})
        done = Watched(start_line(shell, shell.line(*build, "--on", cluster.address, "--store", "store"))).end()
    assert "sitecustomize" not in (tmp_path / "dask.log").read_text()  # Python goes on without what it cannot import
    assert done["failed"] == []
    ran = {str(job["label"]).split()[0] for job in done["jobs"]}  # type: ignore[attr-defined]
    assert "prove" in ran, ran


def test_a_worker_that_cannot_read_host_code_proves_nothing(shell: Shell, tmp_path: Path) -> None:
    """A proof is in the store for all: one that leaves host code out would count for whoever builds the same."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['capstone'] = None\n")
    bare = {"PYTHONPATH": str(tmp_path)}
    build = ("build", "sm90-avx512", "--release", "main", "--nvidia", "-o", "dist", "--prove", "--json")
    with running(tmp_path) as cluster:
        cluster.start_worker("bare", variables=bare)
        line = shell.line(*build, "--on", cluster.address, "--store", "store")
        failed = Watched(start_line(shell, line)).end(ExitCode.ENVIRONMENT)
        assert "needs the Python package capstone" in str(failed["failed"]) and not (tmp_path / "dist" / NAME).exists()
        cluster.kill(cluster.workers["bare"])
        cluster.start_worker("whole")
        done = Watched(start_line(shell, line)).end()
        assert done["failed"] == [] and done["proven"] == "static"
    shutil.rmtree(tmp_path / "store")
    shell.environment |= bare
    shell.site.requests.clear()
    local = Watched(start_line(shell, shell.line(*build, "--on", "local:1", "--store", "store")))
    assert "needs the Python package capstone" in str(local.end(ExitCode.ENVIRONMENT)) and not downloads(shell)


def test_a_killed_client_is_resumed_on_this_machine_and_leaves_no_process(
    shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    site = shell.site
    site.gate.clear()
    marker = f"TORCHTAILOR_CACHE={tmp_path}"
    first = Watched(start(shell, "local:2"))
    wait_until(lambda: site.waiting >= 2, "both workers download")
    os.killpg(first.process.pid, 0)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    wait_until(lambda: not _with_environment(marker), "the workers end with the client")
    site.gate.set()
    assert not (tmp_path / "dist" / NAME).exists()
    result = Watched(start(shell, "local:2")).end()
    assert tree(tmp_path / "dist") == wanted
    assert 12 <= len(result["jobs"]) <= 14  # type: ignore[arg-type]
    history = json.loads(shell.torchtailor("history", "--json").stdout)["attempts"]
    assert [attempt["result"] for attempt in history] == ["killed", "killed", "done", "done"]
    assert not processes_naming(str(tmp_path))


def _with_environment(marker: str) -> list[int]:
    """Processes that were started with a variable."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                if marker.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def test_farm_check_says_what_a_worker_is(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["farm", "check", "local:1", "--store", str(shell.root / "store"), "--json"]) == 0
    (worker,) = json.loads(capsys.readouterr().out)["workers"]
    assert worker["usable"] and "wheel" in worker["builds"] and worker["facts"]["version"] == torchtailor.__version__


def test_no_worker_is_lost_because_dask_looks_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client asks the scheduler about itself every two seconds, and then knows no workers for a moment."""
    import dask
    from distributed import Client

    from torchtailor.building.farm.daskengine import DaskEngine

    monkeypatch.setattr("torchtailor.building.farm.daskengine._LOOK", 0.0)
    often = {"distributed.client.scheduler-info-interval": "1ms"}
    with running(tmp_path, "one") as cluster, dask.config.set(often), Client(cluster.address) as client:
        engine = DaskEngine(client, WorkerSetup(str(tmp_path / "store")))
        kinds: Counter[EventKind] = Counter()
        end = time.monotonic() + LONG
        while not kinds[EventKind.WORKER_JOINED] > 1 and time.monotonic() < end:
            kinds += Counter(news.kind for news in engine.wait(0.1) if isinstance(news, WorkerNews))
        for _ in range(200):
            kinds += Counter(news.kind for news in engine.wait(0.0) if isinstance(news, WorkerNews))
        engine.close()
    assert kinds == {EventKind.WORKER_JOINED: 2}  # with this process


def test_help_does_not_import_dask(shell: Shell) -> None:
    done = shell.run("env", "PYTHONPROFILEIMPORTTIME=1", *shell.line("build", "--help"))
    assert "--on" in done.stdout
    assert "distributed" not in done.stderr and "| dask" not in done.stderr


@pytest.mark.slow
def test_twenty_random_kills_change_no_byte(shell: Shell, wanted: dict[str, str], tmp_path: Path) -> None:
    """Workers die at random times, in their imports too; every run ends, and every run gives the same bytes."""
    rng = random.Random(16)
    killed = runs = 0
    with running(tmp_path, "w0", "w1") as cluster:
        while killed < 20:
            for left in ("store", "dist", *(path.name for path in tmp_path.glob("cache-*"))):
                shutil.rmtree(tmp_path / left, ignore_errors=True)
            build = Watched(start(shell, cluster.address))
            done = 0
            while killed < 20 and _goes_on(build, done + rng.randint(0, 2)):
                done = len(build.seen("job-done"))
                time.sleep(rng.uniform(0.0, 0.3))
                with suppress(AssertionError):  # it is gone already
                    cluster.kill_named(str(build.seen("job-started")[-1]["worker"]))
                    killed += 1
                    cluster.start_worker(f"w{killed + 1}")
            result = build.end()
            runs += 1
            assert result["failed"] == []
            assert tree(tmp_path / "dist") == wanted
    print(f"{killed} kills in {runs} runs")


def _goes_on(build: Watched, done: int) -> bool:
    """Wait for a job that runs after so many are done; False where the build has ended."""

    def running_job() -> bool:
        return len(build.seen("job-done")) >= done and len(build.seen("job-started")) > len(build.seen("job-done"))

    wait_until(lambda: running_job() or build.process.poll() is not None, "a job runs")
    return build.process.poll() is None
