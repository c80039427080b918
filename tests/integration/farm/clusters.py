"""A Dask cluster of real processes: a scheduler and workers, each worker with a cache of its own, as machines have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integration.building.conftest import clean_environment
from tests.integration.farm.forked import Forked
from tests.waiting import wait_until

DaskProcess = subprocess.Popen[bytes] | Forked


class DaskCluster:
    """Processes that a test may kill."""

    def __init__(self, root: Path, variables: Mapping[str, str] | None = None, host: str = "") -> None:
        self.root = root
        self.variables = dict(variables or {})  # of all its processes; where they name certificates, it has TLS
        self.protocol = ("--protocol", "tls") if self.variables else ()
        self.host = ("--host", host) if host else ()
        self.scheduler: DaskProcess | None = None
        self.workers: dict[str, DaskProcess] = {}
        self.address = ""

    def start_scheduler(self) -> None:
        file = self.root / "scheduler.json"
        file.unlink(missing_ok=True)
        self.scheduler = self._dask(
            "scheduler", "--port", "0", "--no-dashboard", *self.host, *self.protocol, "--scheduler-file", str(file)
        )
        wait_until(file.is_file, "the scheduler starts")
        self.address = wait_until(lambda: json.loads(file.read_text() or "{}").get("address"), "its address")

    def start_worker(
        self,
        name: str,
        *,
        file_size: int | None = None,
        variables: dict[str, str] | None = None,
        nthreads: int = 1,
        nanny: str = "--no-nanny",
    ) -> DaskProcess:
        own = {"TORCHTAILOR_CACHE": str(self.root / f"cache-{name}")}
        words = ("worker", self.address, nanny, "--no-dashboard", "--nthreads", str(nthreads), "--name", name)
        self.workers[name] = self._dask(*words, variables=own | (variables or {}), file_size=file_size)
        return self.workers[name]

    def kill(self, process: DaskProcess | None) -> None:
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_named(self, worker: str) -> None:
        """The worker that a farm calls HOST:PORT."""
        port = worker.rpartition(":")[2]
        self.kill(self.workers[self._name_of(port)])

    def _name_of(self, port: str) -> str:
        inode = {line.split()[9]: int(line.split()[1].rpartition(":")[2], 16) for line in _tcp_lines()}
        for name, process in self.workers.items():
            if process.poll() is not None:
                continue
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                try:
                    target = str(link.readlink())
                except OSError:
                    continue
                if target.startswith("socket:[") and inode.get(target[8:-1]) == int(port):
                    return name
        raise AssertionError(f"no worker has port {port}")

    def _dask(
        self, *words: str, variables: Mapping[str, str] | None = None, file_size: int | None = None
    ) -> DaskProcess:
        environment = clean_environment(self.root) | {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
        environment |= {**self.variables, **(variables or {})}
        path = self.root / "dask.log"
        if "PYTHONPATH" not in (variables or {}):  # with it, what is imported at the start is another
            return Forked(words, path, environment, file_size)
        with path.open("ab") as log:
            line = [sys.executable, "-m", "dask", *words]
            return subprocess.Popen(line, cwd=self.root, env=environment, stdout=log, stderr=log)

    def close(self) -> None:
        for process in (*self.workers.values(), self.scheduler):
            if process is not None and process.poll() is None:
                self.kill(process)


def _tcp_lines() -> list[str]:
    lines = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        lines += path.read_text().splitlines()[1:] if path.exists() else []
    return [line for line in lines if line.split()[3] == "0A"]  # listening


@contextmanager
def running(
    root: Path, *workers: str, variables: Mapping[str, str] | None = None, host: str = ""
) -> Iterator[DaskCluster]:
    cluster = DaskCluster(root, variables, host)
    try:
        cluster.start_scheduler()
        for name in workers:
            cluster.start_worker(name)
        yield cluster
    finally:
        cluster.close()
