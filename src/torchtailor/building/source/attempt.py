"""One build attempt: copy, configure, compile, pack; a failure is diagnosed from its log."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchtailor.advise.host.capacity import Capacity
from torchtailor.building.ledger.ledger import Ledger, Running
from torchtailor.building.process import BuildCommand, Log, run
from torchtailor.building.source.ccache import Hits, count_from_zero, read_hits
from torchtailor.building.source.ccache import prepare as prepare_ccache
from torchtailor.building.source.configuration import Configuration
from torchtailor.building.source.estimate import SPEED_KEY, Estimate, measured_speed
from torchtailor.building.source.ninja import edges, read_log, read_status, write_pool
from torchtailor.building.source.parallel import CompileJobs, choose_jobs
from torchtailor.building.source.tables import FileKind, Tables
from torchtailor.building.source.tree import SourceTree, copy_tree
from torchtailor.building.source.watch import sample
from torchtailor.core.disk import staging_folder, write_atomically
from torchtailor.core.errors import BuildFailedError, EnvironmentProblem
from torchtailor.core.format import counted
from torchtailor.core.progress import Progress
from torchtailor.verification.failures import Diagnosis, diagnose

_LINE = 4096  # characters in which the status of ninja is, if a line has it
_NOTE_EVERY = 30  # beats between two updates of the ledger


class BuildStoppedError(BuildFailedError):
    """A command of a build failed, and its log was diagnosed."""

    def __init__(self, stage: str, code: int, diagnosis: Diagnosis, log: Path, percent: float | None) -> None:
        self.stage, self.exit_code, self.diagnosis, self.log, self.percent = stage, code, diagnosis, log, percent
        finding = diagnosis.finding
        where = f"{stage} at {percent:.0f} %" if percent is not None else stage
        if finding:
            cause, fix = finding.cause, finding.fix
        elif code < 0:
            cause, fix = (
                f"The command was ended by signal {-code}.",
                "If nobody sent it, the kernel did, because memory ran out.",
            )
        else:
            first = _first_error(diagnosis)
            cause = f"The cause is not known: {first}" if first else "The log has no error message."
            fix = "Read the lines around it."
        super().__init__(f"The build failed ({where}). {cause}", f"{fix} The log is {log}.")

    @property
    def failure(self) -> str:
        return self.diagnosis.finding.failure if self.diagnosis.finding else ""

    @property
    def for_memory(self) -> bool:
        """Whether memory ran out; fewer jobs then help."""
        killed = self.exit_code == -9 and not self.diagnosis.finding
        return killed or self.failure == "out-of-memory"


def _first_error(diagnosis: Diagnosis) -> str:
    """The compiler's own message: ninja's FAILED line and the command come before it."""
    messages = [line.text.strip() for line in diagnosis.context if re.search(r"\berror\b:", line.text)]
    first = diagnosis.first_error
    return (messages[0] if messages else first.text.strip() if first else "")[:200]


@dataclass(frozen=True)
class Workspace:
    """The folder of one build, and the tools that it uses."""

    folder: Path
    tree: SourceTree
    tables: Tables
    capacity: Capacity
    python: Path
    ninja: Path
    environment: Callable[[Configuration], Mapping[str, str]]
    ccache: bool
    asked_jobs: int | None
    compiler: str  # gcc 14.2.0
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
    def bundled(self) -> Path:
        """Where the wheel is with the libraries that it needs."""
        return self.folder / "bundled"

    @property
    def include(self) -> Path:
        """The CMake file with the cache variables."""
        return self.folder / "torchtailor.cmake"

    def start_over(self) -> None:
        """Nothing half-deleted is left to continue with: folders are moved away before they are deleted."""
        (self.folder / _STATE).unlink(missing_ok=True)
        with staging_folder(self.folder) as staging:
            for path in (self.source, self.dist, self.bundled):
                if path.is_dir():
                    path.rename(staging / path.name)


_STATE = "state.json"
# What a configured build depends on beside its switches: another compiler or toolkit, or none of the cache.
_CONFIGURED_WITH = (
    *("CC", "CXX", "CUDACXX", "CUDA_HOME", "CMAKE_LIBRARY_PATH", "PYTORCH_BUILD_VERSION"),
    *(f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("C", "CXX", "CUDA")),
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a successful attempt gave."""

    wheel: Path | None  # None where only some targets were built
    files: int
    peak_memory: int
    hits: Hits | None


@dataclass(slots=True)
class BuildAttempt:
    """Builds the wheel, from the point that an earlier attempt has reached."""

    workspace: Workspace
    configuration: Configuration
    jobs: CompileJobs | None
    running: Running
    ledger: Ledger
    log: Log
    progress: Progress
    number: int = 1
    _estimate: Estimate | None = field(default=None, init=False)
    _beats: int = field(default=0, init=False)

    def run(self) -> Compiled:
        space = self.workspace
        environment = dict(space.environment(self.configuration))
        kinds = self.configure()
        self.jobs = self.jobs or choose_jobs(space.capacity, kinds.values(), asked=space.asked_jobs)
        heavy = write_pool(space.build, space.tables, self.jobs.heavy)
        environment["MAX_JOBS"] = str(self.jobs.total)
        self.running.configuration |= {"jobs": self.jobs.total, "heavy_jobs": self.jobs.heavy}
        jobs = counted(self.jobs.total, "job")
        self.log.say(f"{jobs}, {self.jobs.heavy} of them for {heavy} heavy files: {self.jobs.why}")
        if space.ccache:
            count_from_zero(environment)
        self._compile(environment)
        wheel = self._pack(environment) if space.whole else None
        made = read_log(space.build)
        if (speed := measured_speed(kinds, made)) is not None:
            self.running.configuration[SPEED_KEY] = round(speed, 3)
        hits = read_hits(environment) if space.ccache else None
        if hits is not None and hits.rate is not None:
            self.running.configuration["ccache_hits"] = round(hits.rate, 3)
        self.running.stage, self.running.percent = "", 100.0
        peak = self._estimate.peak if self._estimate else 0
        self.running.configuration["peak_memory"] = peak
        return Compiled(wheel, len(kinds), peak, hits)

    def configure(self) -> dict[str, FileKind]:
        """Copy the source and configure it; what is compiled and linked, by output."""
        space = self.workspace
        environment = dict(space.environment(self.configuration))
        if space.ccache:
            prepare_ccache(environment)
        self._copy()
        self._configure(environment)
        return edges(space.build, space.tables)

    def _copy(self) -> None:
        """Copy beside and rename, so that a build killed while copying starts over."""
        space = self.workspace
        if space.source.is_dir():
            return
        self._stage("copy", "Copying the source")
        with staging_folder(space.folder) as staging:
            copy_tree(space.tree.path, staging / "src")
            (staging / "src").rename(space.source)

    def _configure(self, environment: Mapping[str, str]) -> None:
        space = self.workspace
        wanted = {"digest": self.configuration.digest, "source": space.tree.identity, "python": str(space.python)}
        wanted |= {name: environment.get(name, "") for name in _CONFIGURED_WITH}
        wanted["compiler"] = space.compiler
        state = space.folder / _STATE
        before = _read(state)
        if (space.build / "build.ninja").is_file() and before == wanted:
            self.log.say("configured as before")
            return
        self._stage("configure", "Configuring")
        _clear_installed(space)
        if space.build.is_dir() and before.get("compiler", space.compiler) != space.compiler:
            # ninja compares command lines, and those of an updated compiler are the same.
            self.log.say(f"compiled by {before['compiler']} until now: starting over with {space.compiler}")
            shutil.rmtree(space.build)
        write_atomically(state, json.dumps({"compiler": space.compiler}).encode())
        space.include.write_text(self.configuration.cmake_text(), "utf-8")
        (space.build / "CMakeCache.txt").unlink(missing_ok=True)
        self._run((str(space.python), "setup.py", "build", "--cmake-only"), space.source, environment)
        write_atomically(state, json.dumps(wanted).encode())

    def _compile(self, environment: Mapping[str, str]) -> None:
        space = self.workspace
        assert self.jobs is not None
        kinds = edges(space.build, space.tables)
        self._estimate = Estimate(kinds, read_log(space.build), self.jobs.total, space.speed, whole=space.whole)
        what = counted(len(kinds), "file") if space.whole else ", ".join(space.targets)
        self._stage("compile", f"Compiling {what}, {self.jobs.total} in parallel")
        line = (str(space.ninja), "-C", str(space.build), "-j", str(self.jobs.total), *space.targets)
        self._run(line, space.source, environment)

    def _pack(self, environment: Mapping[str, str]) -> Path:
        space = self.workspace
        self._stage("package", "Packing the wheel")
        shutil.rmtree(space.dist, ignore_errors=True)
        self._run((str(space.python), "setup.py", "bdist_wheel", "-d", str(space.dist)), space.source, environment)
        wheels = sorted(space.dist.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildFailedError(
                f"setup.py built {len(wheels)} wheels instead of one.", f"The log is {self.log.path}."
            )
        return wheels[0]

    def _stage(self, name: str, text: str) -> None:
        self.running.stage = name
        self._note()
        self.progress.stage(text)

    def _note(self) -> None:
        """Hours of compiling are not given up because the ledger's disk is full."""
        with suppress(EnvironmentProblem):
            self.ledger.note(self.running)

    def _run(self, line: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        command = BuildCommand(line, folder, environment, "Remove the folder env/ of --work; it is created again.")
        code = run(command, self._take, log=self.log, beat=self._beat)
        if code == 0:
            return
        found = self._diagnose()
        self.running.failure = found.finding.failure if found.finding else ""
        raise BuildStoppedError(self.running.stage, code, found, self.log.path, self.running.percent)

    def _take(self, line: str) -> None:
        status = read_status(line[:_LINE])
        if status and self._estimate:
            self._estimate.take(status)
            self.running.percent = round(self._estimate.progress.percent, 1)
            self.progress.compiling(self._estimate.progress)

    def _beat(self, pid: int) -> None:
        self._beats += 1
        if self._estimate:
            self._estimate.look(sample(pid))
            self.progress.compiling(self._estimate.progress)
        if self._beats % _NOTE_EVERY == 0:
            self._note()

    def _diagnose(self) -> Diagnosis:
        if not self.log.whole:
            return diagnose(io.BytesIO(b"".join(self.log.tail)))
        with self.log.path.open("rb") as file:
            return diagnose(file)


def _clear_installed(space: Workspace) -> None:
    """Remove what another configuration installed into the source tree: it would be packed too."""
    with suppress(OSError):
        for line in (space.build / "install_manifest.txt").read_text("utf-8").splitlines():
            path = Path(line)
            if path.is_relative_to(space.source):
                path.unlink(missing_ok=True)
    for pattern in ("lib.*-*", "temp.*-*", "bdist.*-*"):
        for folder in space.build.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
