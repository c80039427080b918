"""What a dry run of a build on a farm expects, against the run: real wheels from an index behind a slow line.

    python benchmarks/farm_estimate.py WHEELS VARIANT --release 2.15 [--line 40] [--places local:1,cluster:2]

WHEELS is a folder with all wheels of the variant; they are served over HTTP, and all downloads share a line of so
many MB a second. A build without a farm comes first: from it the ledger knows how fast this machine fetches and cuts.
Then each place builds with a cache and a store that are empty; cluster:N are N workers of a scheduler of their own,
each with a cache of its own, as on N machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 256 << 10


class Line:
    """A line that all downloads share."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, time.monotonic(), threading.Lock()

    def send(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            pause = self._free - time.monotonic()
        time.sleep(max(0.0, pause))


@contextmanager
def index(wheels: Path, line: Line) -> Iterator[str]:
    """A simple index of the wheels in a folder."""
    pages: dict[str, list[str]] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with wheel.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        project = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        pages.setdefault(project, []).append(f'<a href="/files/{wheel.name}#sha256={sha256}">{wheel.name}</a>')

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            parts = self.path.strip("/").split("/")
            path = wheels / parts[-1]
            if parts[0] == "simple" and parts[-1] in pages:
                self._send(200, "\n".join(pages[parts[-1]]).encode())
            elif parts[0] == "files" and path.is_file():
                self._file(path, body=body)
            else:
                self._send(404, b"not here")

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _file(self, path: Path, *, body: bool) -> None:
            size = path.stat().st_size
            start, end = 0, size
            if wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
                start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
                end = min(int(wanted[2]) + 1, size) if wanted[1] and wanted[2] else size
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            with path.open("rb") as file:
                file.seek(start)
                while body and start < end:
                    data = file.read(min(_CHUNK, end - start))
                    line.send(len(data))
                    self.wfile.write(data)
                    start += len(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()


@contextmanager
def cluster(count: int, root: Path, environment: dict[str, str]) -> Iterator[str]:
    """A scheduler and workers, which have nothing in common but the store."""
    dask = [sys.executable, "-m", "dask"]
    file = root / "scheduler.json"
    words = ["scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": root}
    processes = [subprocess.Popen([*dask, *words], env=environment, **quiet)]  # type: ignore[call-overload]
    try:
        while not file.is_file():
            time.sleep(0.1)
        time.sleep(1)
        address = str(json.loads(file.read_text())["address"])
        for number in range(count):
            own = environment | {"TORCHTAILOR_CACHE": str(root / f"worker-{number}")}
            words = ["worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
            processes.append(subprocess.Popen([*dask, *words], env=own, **quiet))  # type: ignore[call-overload]
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--release", required=True)
    parser.add_argument("--line", type=float, default=40.0, help="MB a second")
    parser.add_argument("--places", default="local:1,local:2,local:3,cluster:1,cluster:2")
    parser.add_argument("--more", default="", help="options for every build")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder, index(given.wheels, Line(given.line * 1e6)) as url:
        root = Path(folder)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
        environment = kept | {"PIP_CONFIG_FILE": os.devnull, "TORCHTAILOR_STATE": str(root / "state")}
        words = ["build", *given.variants, "--release", given.release, "-i", url, *given.more.split(), "-o", "dist"]

        def torchtailor(*more: str) -> dict[str, object]:
            line = [sys.executable, "-m", "torchtailor", *words, "--json", *more]
            done = subprocess.run(line, cwd=root, env=environment, stdout=subprocess.PIPE, check=True)
            document: dict[str, object] = json.loads(done.stdout)
            return document

        def measured(place: str, *more: str) -> None:
            plan = torchtailor(*more, "--dry-run")
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            torchtailor(*more)
            took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            expected = float(plan["seconds"] if "seconds" in plan else expectation(plan, place))  # type: ignore[arg-type]
            load = os.getloadavg()[0]
            print(
                f"| {place} | {expected:.0f} s | {took:.0f} s | {expected / took:.2f} | {cpu:.0f} s | {load:.1f} |",
                flush=True,
            )

        print("| place | expected | took | ratio | CPU time | load |\n|---|---|---|---|---|---|")
        for place in ["without a farm", *given.places.split(",")]:
            kind, _, number = place.partition(":")
            for name in ("cache", "store", "dist", *(f"worker-{n}" for n in range(9))):
                shutil.rmtree(root / name, ignore_errors=True)
            (root / "scheduler.json").unlink(missing_ok=True)
            environment["TORCHTAILOR_CACHE"] = str(root / "cache")
            if kind == "cluster":
                with cluster(int(number), root, environment) as address:
                    table = f'[farm.rack]\nscheduler = "{address}"\nworkers = {number}\n'
                    (root / "torchtailor.toml").write_text(table)
                    measured(place, "--on", "rack", "--store", "store")
                (root / "torchtailor.toml").unlink()
            elif kind == "local":
                measured(place, "--on", place, "--store", "store")
            else:
                measured(place)


def expectation(plan: dict[str, object], place: str) -> float:
    """The expected time on as many workers as a place has."""
    workers = int(place.partition(":")[2])
    rows: list[dict[str, float]] = plan["expected"]  # type: ignore[assignment]
    return next(row["seconds"] for row in rows if row["workers"] == workers)


if __name__ == "__main__":
    main()
