#!/usr/bin/env python3
"""Compiles c10 and a part of ATen in two shards on a farm, in the system that setup.sh created, and breaks the farm.

    sudo tools/trixie/shards.py FOLDER [--scratch DIR] [--kills 20] [--stage NAME ...] [--target TARGET ...] [--json]

The farm is real: a Dask scheduler, worker processes with a work folder and a cache each, and a Redis for objects
(`redis-server` of this machine). First each of two workers unpacks and configures the source and generates code, once.
Then the stages, each without any object, in folders, in ccache or in Redis:

    one     one worker
    two     two workers
    kills   two workers, of which one after the other is killed with SIGKILL at random and replaced
    redis   two workers; Redis is killed when the compile has begun

It fails unless all objects and libraries of all stages have the same bytes. With --scratch, FOLDER is not changed:
what is written goes to DIR. All processes and mounts end with it, however it ends. Only Python itself is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "src", "docs", "tools")
VENV = "/opt/torchtailor-farm"
OBJECTS = "caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/core"
ATEN = (
    "Dict Dimname Formatting Generator List NamedTensor Range Tensor blob boxing/KernelFunction class_type "
    "custom_class dispatch/OperatorEntry dynamic_type function_schema interned_strings ivalue library "
    "op_registration/op_registration tensor_type type union_type"
)
GENERATES = "adaption"  # a small file of ATen; all code is generated before it is compiled
WORKERS = ("first", "second")
PLACE = "/farm"  # in the system
PASSED = ("http_proxy", "https_proxy", "PIP_INDEX_URL", "PIP_CERT")
STAGES = ("one", "two", "kills", "redis")
INSIDE = "TORCHTAILOR_FARM_INSIDE"
PAUSE = (6.0, 18.0)  # seconds between two kills
LONG = 3600.0


@dataclass
class Outcome:
    """What one stage gave."""

    stage: str
    workers: int
    seconds: float = 0.0
    compile_seconds: float = 0.0  # from the start of the first shard to the end of the last one
    core_seconds: float = 0.0  # of user and system, of all processes
    compiled: int = 0  # files, in all shards
    link_hits: int = 0
    link_misses: int = 0
    kills: int = 0
    files: int = 0  # objects and libraries, with the same bytes in all stages

    @property
    def hit_rate(self) -> float:
        found = self.link_hits + self.link_misses
        return self.link_hits / found if found else 1.0


def wait_for(check: Callable[[], object], what: str, limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"farm: {what} takes longer than {limit:.0f} s")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class System:
    """The Debian system, entered with chroot."""

    root: Path

    def line(self, *words: str, **variables: str) -> list[str]:
        values = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **variables}
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        settings = [f"{name}={value}" for name, value in {**passed, **values}.items()]
        return ["chroot", str(self.root), "env", "-i", *settings, *words]

    def install(self) -> None:
        """This repository's torchtailor with Dask, in an environment of its own."""
        place = self.root / "opt" / "torchtailor-farm-source"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in INSTALLED:
            source = REPOSITORY / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, place / name)
        if not (self.root / VENV[1:]).exists():
            subprocess.run(self.line("python3", "-m", "venv", VENV), check=True)
        pip = (f"{VENV}/bin/pip", "install", "-q", "--disable-pip-version-check")
        subprocess.run(self.line(*pip, f"/{place.relative_to(self.root)}[farm]"), check=True)
        again = ("--force-reinstall", "--no-deps")
        subprocess.run(self.line(*pip, *again, f"/{place.relative_to(self.root)}"), check=True)


@dataclass
class Farm:
    """The processes of one stage."""

    system: System
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    address: str = ""
    redis: int = 0

    def path(self, *names: str) -> Path:
        return self.system.root.joinpath(PLACE[1:], *names)

    def start_redis(self) -> None:
        self.redis = free_port()
        line = ["redis-server", "--port", str(self.redis), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.processes["redis"] = subprocess.Popen(line, stdout=subprocess.DEVNULL, cwd="/")
        wait_for(lambda: not _refused(self.redis), "the start of Redis")

    def start_scheduler(self) -> None:
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        self._dask("scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        wait_for(lambda: not _refused(port), "the start of the scheduler")

    def start_worker(self, name: str) -> None:
        """With a work folder and a cache of its own, as another machine has; only the build tools are shared."""
        work = self.path(name)
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "env").is_symlink():
            (work / "env").symlink_to(f"{PLACE}/env")
        variables = {
            "TORCHTAILOR_WORK": f"{PLACE}/{name}",
            "TORCHTAILOR_CACHE": f"{PLACE}/{name}/cache",
            "TORCHTAILOR_STATE": f"{PLACE}/{name}/state",
        }
        words = ("worker", self.address, "--no-nanny", "--no-dashboard", "--nthreads", "1", "--name", name)
        self._dask(name, *words, "--local-directory", f"{PLACE}/{name}/dask", **variables)

    def _dask(self, name: str, *words: str, **variables: str) -> None:
        with self.path("dask.log").open("ab") as log:
            line = self.system.line(f"{VENV}/bin/python", "-m", "dask", *words, **variables)
            self.processes[name] = subprocess.Popen(line, stdout=log, stderr=log, cwd="/")

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def build(self, targets: list[str]) -> subprocess.Popen[str]:
        words = ["build", "cpu-armv8_2" if os.uname().machine == "aarch64" else "cpu-avx2", "--via", "source"]
        words += ["--source", "/src/pytorch", "--python", "3.13", "--profile", "minimal", "--set", "USE_SYSTEM_LIBS=ON"]
        words += ["--set", "BLAS=OpenBLAS", "--skip-check", "disk", "--json", "-o", f"{PLACE}/dist"]
        words += ["--on", self.address, "--store", f"{PLACE}/store", "--shards", "2"]
        words += ["--objects", f"redis://127.0.0.1:{self.redis}"]
        for target in targets:
            words += ["--target", target]
        variables = {"TORCHTAILOR_STATE": f"{PLACE}/state", "TORCHTAILOR_CACHE": f"{PLACE}/client"}
        line = self.system.line(f"{VENV}/bin/torchtailor", *words, **variables)
        with self.path("events").open("wb") as events, self.path("result").open("wb") as result:
            return subprocess.Popen(line, stdout=result, stderr=events, cwd="/", text=True)

    def events(self) -> list[dict[str, object]]:
        lines = self.path("events").read_text("utf-8").splitlines()
        found = []
        for line in lines:
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def compiling(self, workers: Sequence[str]) -> bool:
        """Whether each of the workers has compiled a file."""
        return all(any(b".cpp.o" in log.read_bytes() for log in self.builds(name, ".ninja_log")) for name in workers)

    def clean(self) -> None:
        """Remove all objects and libraries, and all that the store has but the source."""
        for worker in WORKERS:
            shutil.rmtree(self.path(worker, "ccache"), ignore_errors=True)
            for build in self.builds(worker):
                for path in [*build.rglob("*.o"), *build.glob("lib/*.so")]:
                    path.unlink(missing_ok=True)
                log = build / ".ninja_log"  # without it, ninja would generate all code again
                if log.is_file():
                    lines = log.read_bytes().splitlines(keepends=True)
                    log.write_bytes(b"".join(line for line in lines if b".o\t" not in line and b".so\t" not in line))
        for record in self.path("store", "records").glob("*/*"):
            if json.loads(record.read_bytes())["kind"] != "source":
                record.unlink()

    def builds(self, worker: str, pattern: str = "") -> Iterator[Path]:
        return self.path(worker).glob(f"slots/*/*/src/build/{pattern}".rstrip("/"))

    def bytes(self, workers: Sequence[str]) -> dict[str, str]:
        """The hash of each object and library; the same in all folders that have it."""
        found: dict[str, str] = {}
        for worker in workers:
            for build in self.builds(worker):
                for path in [*build.rglob("*.cpp.o"), *build.glob("lib/*.so")]:
                    name = str(path.relative_to(build))
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    if found.setdefault(name, digest) != digest:
                        raise SystemExit(f"farm: {name} of {worker} has other bytes than that of another worker")
        return found

    def close(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is None:
                self.kill(name)


def _refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def started(system: System) -> Iterator[Farm]:
    farm = Farm(system)
    farm.path("env").mkdir(parents=True, exist_ok=True)
    try:
        farm.start_redis()
        farm.start_scheduler()
        yield farm
    finally:
        farm.close()


def prepare(system: System) -> None:
    """Let each worker unpack, configure and generate code, one after the other."""
    for worker in WORKERS:
        with started(system) as farm:
            if any(farm.builds(worker, "aten/src/ATen/core/TensorBody.h")):
                continue
            say(f"{worker}: unpack, configure and generate code ...")
            farm.clean()
            farm.start_worker(worker)
            finish(farm, farm.build([f"{OBJECTS}/{GENERATES}.cpp.o"]))


def finish(farm: Farm, build: subprocess.Popen[str]) -> dict[str, object]:
    """The document of a build that must succeed."""
    code = build.wait(LONG)
    text = farm.path("result").read_text("utf-8")
    if code:
        raise SystemExit(f"farm: exit code {code}: {text or farm.path('events').read_text('utf-8')}")
    document: dict[str, object] = json.loads(text)
    return document


def run_stage(system: System, stage: str, targets: list[str], kills: int, seed: int) -> tuple[Outcome, dict[str, str]]:
    workers = WORKERS[:1] if stage == "one" else WORKERS
    outcome = Outcome(stage, len(workers))
    rng = random.Random(seed)
    with started(system) as farm:
        farm.clean()
        for name in workers:
            farm.start_worker(name)
        before, began = os.times(), time.monotonic()
        build = farm.build(targets)
        if stage in ("kills", "redis"):
            wait_for(lambda: build.poll() is not None or farm.compiling(workers), "the first file of each worker", 900)
        if stage == "redis":
            farm.kill("redis")
        while stage == "kills" and outcome.kills < kills:
            with suppress(subprocess.TimeoutExpired):
                build.wait(rng.uniform(*PAUSE))
                break
            victim = rng.choice(workers)
            farm.kill(victim)
            farm.start_worker(victim)
            outcome.kills += 1
            say(f"{stage}: killed {victim} ({outcome.kills} of {kills})")
        document = finish(farm, build)
        outcome.seconds = time.monotonic() - began
        found = farm.bytes(workers)
        farm.close()
        after = os.times()
        outcome.core_seconds = sum(after[2:4]) - sum(before[2:4])
        _read(outcome, document, farm.events())
    return outcome, found


def _read(outcome: Outcome, result: dict[str, object], events: list[dict[str, object]]) -> None:
    jobs = result["jobs"]
    assert isinstance(jobs, list)
    shards = [job for job in jobs if job["label"].startswith("compile")]
    (link,) = [job for job in jobs if job["label"].startswith("link")]
    outcome.compiled = sum(job["misses"] for job in shards)
    outcome.link_hits, outcome.link_misses = link["hits"], link["misses"]
    times = {
        kind: [float(str(event["time"])) for event in events if event["kind"] == kind and _is_shard(event)]
        for kind in ("job-started", "job-done")
    }
    outcome.compile_seconds = max(times["job-done"]) - min(times["job-started"])


def _is_shard(event: dict[str, object]) -> bool:
    return str(event.get("job", "")).startswith("compile")


def say(text: str) -> None:
    print(f"farm: {text}", file=sys.stderr, flush=True)


def enter(folder: Path, scratch: Path | None) -> Path:
    """Mount what the system needs; this process has a mount namespace of its own."""
    root = folder
    if scratch:
        root = scratch / "root"
        for name in ("root", "upper", "work"):
            (scratch / name).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={folder},upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(root)], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
    return root


def table(outcomes: list[Outcome]) -> str:
    lines = ["| stage | workers | time | of it compiling | CPU time | found at the link | kills |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for one in outcomes:
        found = f"{one.link_hits} of {one.link_hits + one.link_misses} ({one.hit_rate:.1%})"
        times = f"{one.seconds:.0f} s | {one.compile_seconds:.0f} s | {one.core_seconds:.0f} s"
        lines.append(f"| {one.stage} | {one.workers} | {times} | {found} | {one.kills} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scratch", type=Path, help="where to write instead of FOLDER")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this one; repeatable")
    parser.add_argument("--target", action="append", help="instead of c10 and files of ATen/core; repeatable")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("farm: this needs root")
    if shutil.which("redis-server") is None:
        raise SystemExit("farm: there is no redis-server: apt-get install redis-server")
    if not (given.folder / "src" / "pytorch").is_dir():
        raise SystemExit(f"farm: {given.folder} has no src/pytorch: run tools/trixie/setup.sh")
    if INSIDE not in os.environ:
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
        os.environ[INSIDE] = "1"
        os.execvp("unshare", [*namespaces, sys.executable, *sys.argv])
    system = System(enter(given.folder.resolve(), given.scratch and given.scratch.resolve()))
    say("installing torchtailor")
    system.install()
    prepare(system)
    targets = given.target or ["c10", *(f"{OBJECTS}/{name}.cpp.o" for name in ATEN.split())]
    outcomes, reference = [], None
    for stage in given.stage or STAGES:
        say(f"{stage} ...")
        outcome, found = run_stage(system, stage, targets, given.kills, given.seed)
        if reference is None:
            reference = found
        if found != reference:
            differing = sorted(name for name in {*found, *reference} if found.get(name) != reference.get(name))
            raise SystemExit(f"farm: {stage} gave other bytes: {', '.join(differing[:5])}")
        outcome.files = len(found)
        outcomes.append(outcome)
        say(f"{stage}: {outcome.seconds:.0f} s, {len(found)} files with the same bytes\n{table([outcome])}")
    print(json.dumps([asdict(one) for one in outcomes], indent=1) if given.json else table(outcomes))


if __name__ == "__main__":
    main()
