"""Other places for a farm: machines over a real SSH, objects behind a real HTTP server, and jobs that hang."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.integration.building.conftest import Shell
from tests.integration.farm.clusters import running
from tests.integration.farm.test_cluster import Watched, plain, site, start, wanted
from tests.integration.farm.test_source import (
    SourceFarm,
    build,
    catalog,
    farm,
    ledger,
    library,
    linked,
    project,
    start_workers,
    variant,
    work,
)
from tests.unit.building.test_build import tree
from tests.waiting import wait_until

__all__ = ["build", "catalog", "farm", "ledger", "plain", "project", "site", "variant", "wanted", "work"]

pytestmark = pytest.mark.xdist_group("farm")


@pytest.mark.slow
def test_a_job_that_hangs_is_taken_away_and_runs_again(shell: Shell, wanted: dict[str, str]) -> None:
    """An index that sends nothing more holds both workers: their jobs are taken away, and run again."""
    (shell.root / "torchtailor.toml").write_text(
        '[farm.small]\ncluster = "distributed:LocalCluster"\nworkers = 2\njob_timeout = 30\n'
        '[farm.small.options]\nn_workers = 0\nthreads_per_worker = 1\ndashboard_address = ":0"\n'
    )
    shell.site.gate.clear()
    watched = Watched(start(shell, "small"))
    wait_until(lambda: shell.site.waiting >= 2, "both workers download")
    again = wait_until(lambda: watched.seen("job-again"), "the job is taken away")
    shell.site.gate.set()
    assert "did not end it within" in str(again[0]["text"])
    result = watched.end()
    assert result["failed"] == [] and tree(shell.root / "dist") == wanted


@pytest.mark.slow
def test_machines_over_ssh(shell: Shell, wanted: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    with sshd(tmp_path) as options:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexport TORCHTAILOR_CACHE={tmp_path}/far\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        (shell.root / "torchtailor.toml").write_text(
            f'[farm.machines]\ncluster = "ssh"\n[farm.machines.options]\n'
            f'hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.1"]\nremote_python = "{python}"\n'
            f"worker_options = {{ nthreads = 1 }}\n"
            f"scheduler_options = {{ port = 0, dashboard = false }}\n{options}"
        )
        result = Watched(start(shell, "machines")).end()
        assert tree(shell.root / "dist") == wanted
        assert result["failed"] == [] and (tmp_path / "far" / "blobs").is_dir()
        assert len({job["worker"] for job in result["jobs"]}) == 2  # type: ignore[attr-defined]
        shell.torchtailor("farm", "check", "machines", "--store", "store")


@contextmanager
def sshd(root: Path) -> Iterator[str]:
    """A server of its own on this machine, and the options that reach it."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if program is None or os.geteuid():
        pytest.skip("openssh-server and root are needed")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
    shutil.copy(root / "user.pub", root / "authorized")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = (root / "host.pub").read_text().split()
    (root / "known").write_text(f"[127.0.0.1]:{port} {host[0]} {host[1]}\n")
    settings: dict[str, object] = {
        "HostKey": root / "host",
        "AuthorizedKeysFile": root / "authorized",
        "PidFile": root / "sshd.pid",
    }
    settings |= {"ListenAddress": "127.0.0.1", "StrictModes": "no", "UsePAM": "no", "PermitRootLogin": "yes"}
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    process = subprocess.Popen([program, "-D", "-f", "/dev/null", "-p", str(port), *words], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, "sshd answers")
        key, known = root / "user", root / "known"
        yield f'connect_options = {{ port = {port}, client_keys = ["{key}"], known_hosts = "{known}" }}\n'
    finally:
        process.terminate()
        process.wait()


class Objects(BaseHTTPRequestHandler):
    """What ccache asks of a server: PUT, GET, HEAD and DELETE of files."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        found = self.kept.get(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        if found and self.command == "GET":
            self.wfile.write(found)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._empty(201)

    def do_DELETE(self) -> None:
        self._empty(204 if self.kept.pop(self.path, None) is not None else 404)

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache here")
def test_objects_behind_an_http_server(farm: SourceFarm, build: Any) -> None:
    alone = build()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Objects.kept.clear()
    try:
        with running(farm.root) as cluster:
            start_workers(cluster, farm, "one", "two")
            done = farm.run(cluster.address, f"http://127.0.0.1:{server.server_port}/objects")
    finally:
        server.shutdown()
    assert not done.failed, done.failed
    assert len(Objects.kept) >= 6 and all(path.startswith("/objects/") for path in Objects.kept)
    assert linked(done) == (3, 0)  # what the other worker compiled
    (house,) = done.wheelhouses
    assert library(house.path) == library(alone.wheelhouses[0].path)
