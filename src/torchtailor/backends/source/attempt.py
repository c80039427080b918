"""One attempt at a build: copy, configure, compile, pack; what stops it is diagnosed from its log."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchtailor.backends.source.ccache import Hits, count_from_zero, read_hits
from torchtailor.backends.source.ccache import prepare as prepare_ccache
from torchtailor.backends.source.configuration import Configuration
from torchtailor.backends.source.jobs import Jobs, choose_jobs
from torchtailor.backends.source.ninja import edges, read_log, read_status, write_pool
from torchtailor.backends.source.process import Command, Log, run
from torchtailor.backends.source.progress import SPEED_KEY, Estimate, Watcher, measured_speed
from torchtailor.backends.source.tables import Tables
from torchtailor.backends.source.tree import Tree, copy_tree
from torchtailor.backends.source.watch import sample
from torchtailor.disk import staging_folder, write_atomically
from torchtailor.errors import BuildFailedError, EnvironmentProblem
from torchtailor.failures import Diagnosis, diagnose
from torchtailor.host.capacity import Capacity
from torchtailor.ledger.ledger import Ledger, Running

_NOTE_EVERY = 30  # beats between two notes to the ledger


class BuildStoppedError(BuildFailedError):
    """A command of a build failed, and its log was read."""

    def __init__(self, stage: str, code: int, diagnosis: Diagnosis, log: Path, percent: float | None) -> None:
        self.stage, self.exit_code, self.diagnosis, self.log, self.percent = stage, code, diagnosis, log, percent
        finding = diagnosis.finding
        where = f"{stage} at {percent:.0f} %" if percent is not None else stage
        if finding:
            cause, mend = finding.cause, finding.mend
        elif code < 0:
            cause, mend = (
                f"The command was ended by signal {-code}.",
                "If nobody did that, it was the kernel, for memory.",
            )
        else:
            first = _first_words(diagnosis)
            cause = f"This failure is not known: {first}" if first else "The log holds no error."
            mend = "Read the lines around it."
        super().__init__(f"The build stopped ({where}). {cause}", f"{mend} The log is {log}.")

    @property
    def failure(self) -> str:
        return self.diagnosis.finding.failure if self.diagnosis.finding else ""

    @property
    def for_memory(self) -> bool:
        """Whether the kernel killed it for memory: fewer jobs mend that without asking."""
        killed = self.exit_code == -9 and not self.diagnosis.finding
        return killed or self.failure == "out-of-memory"


def _first_words(diagnosis: Diagnosis) -> str:
    """The first error as its tool said it: ninja's FAILED line and the command come before the compiler's words."""
    said = [line.text.strip() for line in diagnosis.context if re.search(r"\berror\b:", line.text)]
    first = diagnosis.first_error
    return (said[0] if said else first.text.strip() if first else "")[:200]


@dataclass(frozen=True)
class Workshop:
    """The folder one build works in, and what it works with."""

    folder: Path
    tree: Tree
    tables: Tables
    capacity: Capacity
    python: Path
    ninja: Path
    environment: Callable[[Configuration], Mapping[str, str]]
    ccache: bool
    asked_jobs: int | None
    speed: float
    targets: tuple[str, ...] = ("install",)

    @property
    def whole(self) -> bool:
        """Whether all of PyTorch is built, and not only some targets."""
        return self.targets == ("install",)

    @property
    def source(self) -> Path:
        return self.folder / "src"

    @property
    def build(self) -> Path:
        return self.source / "build"

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    @property
    def include(self) -> Path:
        """The CMake file with the cache variables."""
        return self.folder / "torchtailor.cmake"

    def start_over(self) -> None:
        for path in (self.source, self.dist, self.folder / _STATE):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Made:
    """What an attempt that succeeded leaves."""

    wheel: Path | None  # None where only some targets were built
    files: int
    peak_memory: int
    hits: Hits | None


@dataclass(slots=True)
class Attempt:
    """Carries a build from wherever it is to its wheel."""

    workshop: Workshop
    configuration: Configuration
    jobs: Jobs | None
    running: Running
    ledger: Ledger
    log: Log
    watcher: Watcher
    _estimate: Estimate | None = field(default=None, init=False)
    _beats: int = field(default=0, init=False)

    def carry_out(self) -> Made:
        shop = self.workshop
        environment = dict(shop.environment(self.configuration))
        if shop.ccache:
            prepare_ccache(environment)
        self._copy()
        self._configure(environment)
        kinds = edges(shop.build, shop.tables)
        self.jobs = self.jobs or choose_jobs(shop.capacity, kinds.values(), asked=shop.asked_jobs)
        heavy = write_pool(shop.build, shop.tables, self.jobs.heavy)
        environment["MAX_JOBS"] = str(self.jobs.total)
        self.running.configuration |= {"jobs": self.jobs.total, "heavy_jobs": self.jobs.heavy}
        self.log.say(f"{self.jobs.total} jobs, {self.jobs.heavy} of them for {heavy} heavy files: {self.jobs.why}")
        if shop.ccache:
            count_from_zero(environment)
        self._compile(environment)
        wheel = self._pack(environment) if shop.whole else None
        made = read_log(shop.build)
        if (speed := measured_speed(kinds, made)) is not None:
            self.running.configuration[SPEED_KEY] = round(speed, 3)
        hits = read_hits(environment) if shop.ccache else None
        if hits is not None and hits.rate is not None:
            self.running.configuration["ccache_hits"] = round(hits.rate, 3)
        self.running.stage, self.running.percent = "", 100.0
        peak = self._estimate.peak if self._estimate else 0
        self.running.configuration["peak_memory"] = peak
        return Made(wheel, len(kinds), peak, hits)

    def _copy(self) -> None:
        """The copy appears whole or not at all, so that a build killed while copying starts right."""
        shop = self.workshop
        if shop.source.is_dir():
            return
        self._stage("copy", "Copying the source")
        with staging_folder(shop.folder) as staging:
            copy_tree(shop.tree.path, staging / "src")
            (staging / "src").rename(shop.source)

    def _configure(self, environment: Mapping[str, str]) -> None:
        shop = self.workshop
        wanted = {"digest": self.configuration.digest, "source": shop.tree.identity, "python": str(shop.python)}
        state = shop.folder / _STATE
        if (shop.build / "build.ninja").is_file() and _read(state) == wanted:
            self.log.say("configured as before")
            return
        self._stage("configure", "Configuring")
        state.unlink(missing_ok=True)
        _clear_installed(shop)
        shop.include.write_text(self.configuration.cmake_text(), "utf-8")
        (shop.build / "CMakeCache.txt").unlink(missing_ok=True)
        self._run((str(shop.python), "setup.py", "build", "--cmake-only"), shop.source, environment)
        write_atomically(state, json.dumps(wanted).encode())

    def _compile(self, environment: Mapping[str, str]) -> None:
        shop = self.workshop
        assert self.jobs is not None
        kinds = edges(shop.build, shop.tables)
        self._estimate = Estimate(kinds, read_log(shop.build), self.jobs.total, shop.speed, whole=shop.whole)
        what = f"{len(kinds)} files" if shop.whole else ", ".join(shop.targets)
        self._stage("compile", f"Compiling {what}, {self.jobs.total} at once")
        line = (str(shop.ninja), "-C", str(shop.build), "-j", str(self.jobs.total), *shop.targets)
        self._run(line, shop.source, environment)

    def _pack(self, environment: Mapping[str, str]) -> Path:
        shop = self.workshop
        self._stage("package", "Packing the wheel")
        shutil.rmtree(shop.dist, ignore_errors=True)
        self._run((str(shop.python), "setup.py", "bdist_wheel", "-d", str(shop.dist)), shop.source, environment)
        wheels = sorted(shop.dist.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildFailedError(
                f"setup.py left {len(wheels)} wheels instead of one.", f"The log is {self.log.path}."
            )
        return wheels[0]

    def _stage(self, name: str, text: str) -> None:
        self.running.stage = name
        self._note()
        self.watcher.stage(text)

    def _note(self) -> None:
        """Hours of compiling are not given up because the ledger's disk is full just now."""
        with suppress(EnvironmentProblem):
            self.ledger.note(self.running)

    def _run(self, line: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        code = run(Command(line, folder, environment), self.log, self._take, self._beat)
        if code == 0:
            return
        found = self._diagnose()
        self.running.failure = found.finding.failure if found.finding else ""
        raise BuildStoppedError(self.running.stage, code, found, self.log.path, self.running.percent)

    def _take(self, line: str) -> None:
        status = read_status(line)
        if status and self._estimate:
            self._estimate.take(status)
            self.running.percent = round(self._estimate.progress.percent, 1)
            self.watcher.progress(self._estimate.progress)

    def _beat(self, pid: int) -> None:
        self._beats += 1
        if self._estimate:
            self._estimate.look(sample(pid))
            self.watcher.progress(self._estimate.progress)
        if self._beats % _NOTE_EVERY == 0:
            self._note()

    def _diagnose(self) -> Diagnosis:
        if not self.log.whole:
            return diagnose(io.BytesIO(b"".join(self.log.tail)))
        with self.log.path.open("rb") as file:
            return diagnose(file)


def _clear_installed(shop: Workshop) -> None:
    """What another configuration installed beside the sources would be packed too; setuptools would keep its module."""
    with suppress(OSError):
        for line in (shop.build / "install_manifest.txt").read_text("utf-8").splitlines():
            path = Path(line)
            if path.is_relative_to(shop.source):
                path.unlink(missing_ok=True)
    for pattern in ("lib.*-*", "temp.*-*", "bdist.*-*"):
        for folder in shop.build.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
