"""Builds 1 and then 8 GPU targets of one release, each from an empty cache, and compares time and downloads.

    python benchmarks/build_many.py FOLDER [--nvidia] [--work DIR] [--write]

FOLDER contains the wheels of torch 2.15.0 (cu132, x86_64, Python 3.13) and its dependencies, from `pip download`. They
are served over HTTP on this machine, so that downloads are real and counted. The work folder needs about three times
the size of FOLDER.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

GPUS = ("75", "80", "86", "89", "90", "100", "103", "120")
RELEASE = "2.15"
TABLE = Path(__file__).with_name("build_many.md")


class Handler(SimpleHTTPRequestHandler):
    """Files of one folder with ranges, and index pages made from their names."""

    folder: Path
    hashes: dict[str, str]
    sent = 0
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if match := re.fullmatch(r"/simple/([^/]+)/", self.path):
            self._page(match[1])
            return
        path = self.folder / Path(self.path).name
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        start, end, status = 0, size, 200
        if wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            status = 206
            start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
            end = min(int(wanted[2]) + 1, size) if wanted[1] and wanted[2] else size
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        if body:
            with path.open("rb") as file:
                at = start
                while at < end:
                    at += os.sendfile(self.wfile.fileno(), file.fileno(), at, min(end - at, 1 << 24))
            with self.lock:
                Handler.sent += end - start

    def _page(self, project: str) -> None:
        names = [name for name in self.hashes if re.sub(r"[-_.]+", "-", name.split("-")[0]).lower() == project]
        if not names:
            self.send_error(404)
            return
        content = "".join(f'<a href="/files/{name}#sha256={self.hashes[name]}">{name}</a>\n' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class Run:
    """One build from an empty cache."""

    targets: int
    seconds: float
    cpu: float
    downloaded: int
    disk: int


def build(gpus: tuple[str, ...], url: str, work: Path, extra: list[str]) -> Run:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    environment |= {"TORCHTAILOR_CACHE": str(work / "cache"), "TORCHTAILOR_STATE": str(work / "state")}
    names = [f"sm{gpu}-avx2" for gpu in gpus]
    before = Handler.sent
    began, cpu_before = time.monotonic(), _cpu()
    done = subprocess.run(
        [sys.executable, "-m", "torchtailor", "build", *names, "--release", RELEASE, "--python", "3.13",
         "--index-url", url, "-o", str(work / "dist"), "--json", *extra],
        env=environment, cwd=work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    answer = msgspec.json.decode(done.stdout)
    assert len(answer["wheelhouses"]) == len(gpus)
    kibibytes = int(subprocess.check_output(["du", "-sk", str(work)], text=True).split()[0])
    return Run(len(gpus), seconds, _cpu() - cpu_before, Handler.sent - before, kibibytes * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nvidia", action="store_true", help="cut NVIDIA's libraries too")
    parser.add_argument("--work", type=Path, help="where to work")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args()
    wheels = sorted(arguments.folder.glob("*.whl"))
    Handler.folder = arguments.folder
    Handler.hashes = {wheel.name: _hash(wheel) for wheel in wheels}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    work = arguments.work or Path(tempfile.mkdtemp(prefix="build-many-"))
    extra = ["--nvidia"] if arguments.nvidia else []
    runs = [build(gpus, url, work, extra) for gpus in (("90",), GPUS)]
    shutil.rmtree(work, ignore_errors=True)
    table = _table(runs, arguments.nvidia)
    print(table)
    if arguments.write:
        TABLE.write_text(table)


def _cpu() -> float:
    """Seconds of all cores that finished child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _table(runs: list[Run], nvidia: bool) -> str:
    one, many = runs
    options = ", with --nvidia" if nvidia else ""
    names = ", ".join(f"{gpu[:-1]}.{gpu[-1]}" for gpu in GPUS)
    title = (
        f"torch 2.15.0 (cu132, x86_64), cut for 9.0 and for {names}{options}; each from an empty cache, "
        f"wheels served over HTTP on the same machine ({os.cpu_count()} cores)."
    )
    lines = [title, "", "| targets | time | CPU time | downloads | disk |", "|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {run.targets} | {run.seconds:.1f} s | {run.cpu:.1f} s | {run.downloaded / 1e9:.3f} GB "
        f"| {run.disk / 1e9:.2f} GB |"
        for run in runs
    ]
    time_ratio, download_ratio = many.seconds / one.seconds, many.downloaded / one.downloaded
    lines.append(
        f"| ratio | {time_ratio:.2f} x (at most 3) | {many.cpu / one.cpu:.2f} x | {download_ratio:.3f} x (at most 1.2) "
        f"| {many.disk / one.disk:.2f} x |"
    )
    lines += ["", "    python benchmarks/build_many.py FOLDER --write"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
