"""Where a build runs (`--on`): in this process, on workers of this machine, or on a cluster."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from torchtailor.advise.host.capacity import capacity
from torchtailor.advise.host.probe import LiveProbe
from torchtailor.building.farm.address import check_address, has_tls, reach
from torchtailor.building.farm.perform import WorkerSetup, perform_sent
from torchtailor.building.graph.drive import Engine
from torchtailor.building.graph.events import decode_outcome
from torchtailor.building.graph.graph import encode_job
from torchtailor.building.graph.here import Here
from torchtailor.catalog import Catalog
from torchtailor.catalog.load import USER_FILE
from torchtailor.catalog.tables import FarmSettings
from torchtailor.core.cgroups import available_cores
from torchtailor.core.disk import CACHE_VARIABLE, cache_folder, existing_parent, sharing_intact, staging_folder
from torchtailor.core.errors import EnvironmentProblem, NetworkError, NoMatchError, UsageError
from torchtailor.core.format import counted, human_bytes
from torchtailor.core.store import check_store, store_folder

HERE = "here"
_LOCAL = "local"
_EXPECTED = 8  # workers of a cluster that is not configured: into how many pieces work is cut
_CONNECT = 15.0  # seconds for a scheduler to answer
_MEETING = 2.0  # seconds until a cluster answers and the first workers have been asked
_MET = 0.02  # seconds more for each worker: they are asked side by side
_IMPORT = 2.5  # seconds of a core until a new worker can answer
_PER_CORE = 4  # processes that may share a core: some of them wait for disks and networks
_WORKER_MEMORY = 200_000_000  # of a worker that does nothing
_WRITE = "Write --on local:2, --on tcp://HOST:PORT, or --on NAME of a [farm.NAME] section."
# What Dask starts for a word; other classes by module:Class.
_CLUSTERS = {
    "slurm": "dask_jobqueue:SLURMCluster",
    "pbs": "dask_jobqueue:PBSCluster",
    "sge": "dask_jobqueue:SGECluster",
    "lsf": "dask_jobqueue:LSFCluster",
    "oar": "dask_jobqueue:OARCluster",
    "htcondor": "dask_jobqueue:HTCondorCluster",
    "ssh": "distributed:SSHCluster",
    "kubernetes": "dask_kubernetes.operator:KubeCluster",
}
_NEEDED = {"ssh": ("asyncssh",)}


class PlaceKind(Enum):
    """The kinds of places."""

    PROCESS = "this process"
    LOCAL = "workers of this machine"
    SCHEDULER = "a running scheduler"
    CLUSTER = "a cluster that Dask starts"

    @property
    def is_remote(self) -> bool:
        """Whether jobs run on other machines than this one, as far as anybody knows."""
        return self in (PlaceKind.SCHEDULER, PlaceKind.CLUSTER)

    def start_seconds(self, workers: int) -> float:
        """Until workers are there and have said what they are; those of a queue come when they come.

        Processes of this machine import torchtailor and Dask, as many at a time as there are cores.
        """
        if self is PlaceKind.PROCESS:
            return 0.0
        if self.is_remote:
            return _MEETING + workers * _MET
        return _MEETING + _IMPORT * max(1.0, workers / available_cores())


# A queue may be long; the workers of a running scheduler should be there, or come back soon.
_WAIT_MINUTES = {PlaceKind.PROCESS: 1, PlaceKind.LOCAL: 1, PlaceKind.SCHEDULER: 10, PlaceKind.CLUSTER: 60}


@dataclass(frozen=True)
class Where:
    """A place that builds run on."""

    name: str  # as it was given
    kind: PlaceKind
    workers: int = 1
    address: str = ""
    settings: FarmSettings = field(default_factory=FarmSettings)

    @property
    def store(self) -> str:
        """The store where none is given: the configured one, or a folder of the cache."""
        return self.settings.store or str(cache_folder() / "farm")

    @property
    def patience(self) -> float:
        """Seconds without any worker until a run ends."""
        return 60.0 * (self.settings.wait_minutes or _WAIT_MINUTES[self.kind])


class ClosingEngine(Engine, Protocol):
    """An engine that was started for one run."""

    @property
    def dashboard(self) -> str:
        """The address of a page that shows the cluster, or nothing."""

    @property
    def warning(self) -> str:
        """Who else can use the cluster, in a sentence, or nothing."""

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What workers said they are, by name."""


def parse_where(text: str, catalog: Catalog) -> Where:
    """`here`, `local:N`, a scheduler's address, or the NAME of a [farm.NAME] section."""
    if text in catalog.farms:
        return _configured(text, catalog.farms[text])
    if text == HERE:
        return Where(text, PlaceKind.PROCESS)
    head, colon, count = text.partition(":")
    if head == _LOCAL:
        return Where(text, PlaceKind.LOCAL, _number(text, count) if colon else available_cores())
    if "://" in text:
        return Where(text, PlaceKind.SCHEDULER, _EXPECTED, address=check_address(text, "--on"))
    if not text.strip():
        raise UsageError("--on is empty.", _WRITE)
    if "," in text:
        raise UsageError(f"--on {text!r} names more than one place.", _WRITE)
    if colon and head.lower() == HERE:
        raise UsageError(f"--on {text!r}: `here` is this process, and takes no number.", "Write --on here or local:2.")
    if head.lower() in (HERE, _LOCAL):
        raise UsageError(f"--on {text!r} is not lowercase.", f"Write --on {text.lower()}.")
    if colon and count.isdigit():
        raise UsageError(f"--on {text!r} has no protocol.", f"Write --on tcp://{head or 'HOST'}:{count}.")
    known = ", ".join(catalog.farms) or "none"
    raise NoMatchError(
        f"There is no farm {text!r}.",
        f"Write --on local:2 or tcp://HOST:PORT, or add [farm.{text}] to {USER_FILE} (there: {known}).",
    )


def _number(text: str, count: str) -> int:
    if not (count.isascii() and count.isdigit()):
        raise UsageError(f"--on {text!r}: {count!r} is not a number of workers.", "Write --on local:2.")
    if not int(count):
        raise UsageError(f"--on {text} has no workers.", "Write --on local:2.")
    return int(count)


def _configured(name: str, settings: FarmSettings) -> Where:
    if bool(settings.scheduler) == bool(settings.cluster):
        raise UsageError(
            f"[farm.{name}] must have either `scheduler` or `cluster`.",
            'Write scheduler = "tcp://HOST:8786", or cluster = "slurm" with its [farm.NAME.options].',
        )
    if not settings.scheduler:
        _class_path(name, settings.cluster)
        return Where(name, PlaceKind.CLUSTER, settings.workers, settings=settings)
    if settings.options:
        raise UsageError(
            f"[farm.{name}.options] is for a `cluster` that Dask starts, and [farm.{name}] has a `scheduler`.",
            "Omit one of them.",
        )
    address = check_address(settings.scheduler, f"[farm.{name}]: the scheduler")
    return Where(name, PlaceKind.SCHEDULER, settings.workers, address, settings)


def chosen_store(where: Where, given: str | None) -> str:
    """The store of a build: the one that was given, else that of the place; refused where it cannot be one."""
    if given is None and not where.settings.store:
        cache = cache_folder()
        if any(os.path.lexists(path) and not path.is_dir() for path in (cache, *cache.parents)):
            raise EnvironmentProblem(
                f"The cache folder {cache} cannot be used: it is not a folder.",
                f"Set {CACHE_VARIABLE} to a folder you can write to.",
            )
    chosen = where.store if given is None else given
    check_store(chosen, "--store" if given is not None else f"[farm.{where.name}]: the store")
    return str(store_folder(chosen) or chosen)  # also for processes in another folder


def check_room(where: Where) -> None:
    """Refuse more processes than this machine can have."""
    if where.kind is not PlaceKind.LOCAL:
        return
    room = capacity(LiveProbe())
    most = max(room.cores, 2, min(max(8, _PER_CORE * room.cores), room.memory // _WORKER_MEMORY))
    if where.workers > most:
        raise UsageError(
            f"--on {where.name} would start {where.workers} processes; this machine has "
            f"{counted(room.cores, 'core')} and {human_bytes(room.memory)} of free memory.",
            f"Write --on local:{room.cores}; {most} are the most.",
        )


def check_answers(where: Where) -> None:
    """Refuse a place where nobody listens or that cannot be started, before anything is fetched or built for it."""
    check_room(where)
    if where.kind is PlaceKind.LOCAL:
        import torchtailor.building.farm.daskengine  # noqa: F401  (it says how Dask itself is installed)
    elif where.address:
        from torchtailor.building.farm.daskengine import client_keys

        reach(where.address, client_keys(where.address) if has_tls(where.address) else None)
    elif where.kind is PlaceKind.CLUSTER:
        _class_of(where)


@contextmanager
def started(where: Where, setup: WorkerSetup, *, compiles: bool = False) -> Iterator[ClosingEngine]:
    """The engine of a place; what was started for it ends with the block."""
    if where.kind is PlaceKind.PROCESS:
        from torchtailor.building.source.objects import why_unreachable

        if compiles and (why := why_unreachable(setup.objects)):
            raise NetworkError(f"{why[0].upper()}{why[1:]}", "Start it, or give another place with --objects.")
        encoded = msgspec.json.encode(setup)  # the same JSON that a cluster's workers get
        yield Here(lambda jobs: decode_outcome(perform_sent(encode_job(jobs[0].job), encoded)))
        return
    from torchtailor.building.farm.daskengine import DaskEngine, quiet_dask

    quiet_dask()
    local = where.kind is PlaceKind.LOCAL
    with ExitStack() as stack:
        private = stack.enter_context(staging_folder(existing_parent(cache_folder())))
        if local:
            listed = private / "intact"
            stack.enter_context(sharing_intact(listed))
            processes = max(1, available_cores() // where.workers)
            setup = msgspec.structs.replace(setup, processes=processes, intact=str(listed))
        client = stack.enter_context(_client(where, private, stack))
        engine = DaskEngine(
            client,
            setup,
            same_machine=local,
            compiles=compiles,
            patience=where.patience,
            asked=1 if where.kind is PlaceKind.SCHEDULER else where.workers,
        )
        stack.callback(engine.close)
        yield engine


def _client(where: Where, private: Path, stack: ExitStack) -> Any:
    import dask
    from distributed import Client

    from torchtailor.building.farm.daskengine import local_cluster

    # a job that cuts a large wheel may start processes, which daemons may not; Dask's own end with their parent
    dask.config.set({"distributed.worker.daemon": False, "distributed.comm.timeouts.connect": f"{_CONNECT:.0f}s"})
    if where.kind is PlaceKind.LOCAL:
        with _scratch(private):
            cluster = stack.enter_context(local_cluster(where.workers))
        return Client(cluster)
    if where.kind is PlaceKind.CLUSTER:
        with _scratch(private):
            cluster = stack.enter_context(_cluster(where))
        if len(getattr(cluster, "workers", ())) < where.workers:  # those of SSHCluster are its hosts
            with _explained(where.name):
                cluster.scale(where.workers)
        return Client(cluster)
    try:
        return Client(where.address, timeout=_CONNECT)
    except Exception as error:  # of its protocol too, such as TLS without certificates
        raise NetworkError(
            f"The scheduler {where.address} does not answer: {_reason(error)}.",
            "Start one (`dask scheduler`), or check the address and Dask's own configuration.",
        ) from error


@contextmanager
def _scratch(private: Path) -> Iterator[None]:
    """Dask's own folder is one of /tmp that another user may own, and it puts that into `sys.path`."""
    before, tempfile.tempdir = tempfile.tempdir, str(private)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _cluster(where: Where) -> Any:
    """The cluster of a section, made of Dask's class with the section's options as they are."""
    kind = _class_of(where)
    with _explained(where.name):
        return kind(**{**_quietly(kind), **where.settings.options})


def _class_path(farm: str, cluster: str) -> tuple[str, str]:
    """The module and the name of Dask's class for a section."""
    module, _, name = _CLUSTERS.get(cluster, cluster).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise UsageError(
            f"[farm.{farm}]: {cluster!r} is not a known kind of cluster.",
            f"Known: {', '.join(_CLUSTERS)}; any other as module:Class.",
        )
    return module, name


def _class_of(where: Where) -> Any:
    import torchtailor.building.farm.daskengine  # noqa: F401  (it says how Dask itself is installed)

    module, name = _class_path(where.name, where.settings.cluster)
    try:
        for needed in _NEEDED.get(where.settings.cluster, ()):  # which the class itself imports when it starts
            importlib.import_module(needed)
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        package = (error.name or module).partition(".")[0].replace("_", "-")
        raise EnvironmentProblem(
            f"[farm.{where.name}] needs {package}, which is not installed.", f"Install it: pip install {package}."
        ) from error
    if kind is None:
        raise UsageError(f"[farm.{where.name}]: {module} has no class {name}.", "Check the name.")
    return kind


def _quietly(kind: Any) -> dict[str, int]:
    """What its processes would log of a failed start, tracebacks and all, the error says; for classes that know it."""
    try:
        return {"silence_logs": logging.CRITICAL} if "silence_logs" in inspect.signature(kind).parameters else {}
    except (TypeError, ValueError):  # of a class that is not written in Python
        return {}


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Dask's classes raise whatever their cluster raises."""
    try:
        yield
    except Exception as error:
        raise EnvironmentProblem(
            f"[farm.{name}] cannot be started: {_reason(error)}.",
            f"[farm.{name}.options] is handed to Dask's class as it is; see `torchtailor help farm`.",
        ) from error


def _reason(error: BaseException) -> str:
    """Dask's own words, with those of the error behind it, which says what is wrong."""
    first = last = error
    while last.__cause__ is not None:
        last = last.__cause__
    outer, inner = (" ".join(str(one).split()).rstrip(".") for one in (first, last))
    if not outer or not inner or inner in outer:
        return outer or inner or type(last).__name__
    return f"{outer}: {inner}"
