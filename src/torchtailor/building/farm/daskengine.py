"""The engine of clusters: Dask distributed runs the jobs and watches the workers; the policy is the farm's own."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.building.farm import fingerprint
from torchtailor.building.farm.address import has_tls, unprotected
from torchtailor.building.farm.fingerprint import Fingerprint, describe_worker
from torchtailor.building.farm.perform import WorkerSetup, perform_sent
from torchtailor.building.farm.store import open_farm_store
from torchtailor.building.farm.told import TOPIC
from torchtailor.building.graph.drive import JobNews, JobProgress, WorkerNews
from torchtailor.building.graph.events import EventKind, JobOutcome, decode_outcome
from torchtailor.building.graph.graph import GraphJob, encode_job
from torchtailor.building.graph.policy import THIS_PROCESS, FarmWorker
from torchtailor.building.source.objects import why_unreachable
from torchtailor.core.errors import EnvironmentProblem, NetworkError, TorchtailorError
from torchtailor.core.extras import how_to_add
from torchtailor.core.shapes import shaped

try:
    import cloudpickle
    import cryptography  # noqa: F401  (Dask makes keys with it)
    from distributed import Client, Nanny, Scheduler, Security, SpecCluster, Worker
    from distributed.worker_memory import parse_memory_limit
except ImportError as error:
    missing = (error.name or "distributed").partition(".")[0]
    raise EnvironmentProblem(f"{missing} is not installed, which Dask needs.", how_to_add("farm")) from error

_LOOK = 0.5  # seconds between two looks at the workers
_ANSWER = 30.0  # seconds for a worker to answer before it is asked again
_SHOWN = 200  # letters of what a worker says
_REFUSED = 60.0  # seconds for another worker to come, where all that came were refused
_RESOURCE = "MEMORY"  # of Dask, in bytes: other users of a cluster see what our jobs hold
_CONFIGURE = (
    "Set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, and CLIENT__CERT and CLIENT__KEY in the same way, to files in PEM; "
    "see `torchtailor help farm`."
)
cloudpickle.register_pickle_by_value(fingerprint)  # a worker may have no torchtailor


class SchedulerLostError(NetworkError):
    """The scheduler of a cluster does not answer any more."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"The scheduler {address} does not answer any more.",
            "Finished jobs are in the store: run the same command to resume.",
        )


@dataclass(frozen=True)
class _Met:
    """A worker that has said what it is, and why it may not be used."""

    address: str
    worker: FarmWorker
    host: str = ""
    why: str = ""
    described: Mapping[str, Any] = field(default_factory=dict)


class DaskEngine:
    """Runs jobs on the workers of a Dask cluster, each on the worker that the policy chose."""

    def __init__(
        self,
        client: Client,
        setup: WorkerSetup,
        *,
        same_machine: bool = False,
        compiles: bool = False,
        patience: float = 60.0,
        asked: int = 1,
    ) -> None:
        """`same_machine`: the workers see this machine's files. With `compiles`, they need one compiler and glibc.

        Where as many workers as were `asked` for are there and none may be used, no others are on their way.
        """
        self._client, self._setup = client, setup
        self._encoded, self._encoded_here = msgspec.json.encode(setup), msgspec.json.encode(setup.here)
        self._same_machine, self._compiles = same_machine, compiles
        self._patience, self._asked = patience, asked
        self._objects_seen = False
        self._own: Fingerprint | None = None
        self._token = f"tokens/{secrets.token_hex(8)}"
        self._store = open_farm_store(setup.store)
        self._store.put_text(self._token, self._token)
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._futures: dict[str, Any] = {}
        self._workers: dict[str, FarmWorker] = {}  # by address
        self._names: dict[str, str] = {}  # address, by name
        self._refused: dict[str, str] = {}
        self._meetings: dict[str, Future[None]] = {}  # by address, workers that are being asked
        self._known: dict[str, FarmWorker] = {}  # by name, as the driver knows them
        self.facts: dict[str, Mapping[str, Any]] = {}  # what workers said they are, by name
        self._attempts = 0
        self._looked = 0.0
        self._began = time.monotonic()
        self._address = str(client.scheduler.address) if client.scheduler else ""
        self._news: list[WorkerNews | JobNews | JobProgress] = []
        client.subscribe_topic(TOPIC, self._hear)
        if not same_machine:
            me = FarmWorker(THIS_PROCESS, here=True, helps=False)
            self._news.append(WorkerNews(me, EventKind.WORKER_JOINED))

    # What the driver asks for

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        data = encode_job(job.job)
        if worker.name == THIS_PROCESS:
            threading.Thread(target=self._run_here, args=(job.name, data), daemon=True).start()
            return
        address = self._names[worker.name]
        self._attempts += 1
        limit = self._workers[address].memory
        try:
            future = self._client.submit(
                perform_sent,
                data,
                self._encoded,
                key=f"{job.kind}-{job.name[:16]}-{id(self) & 0xFFFF:x}-{self._attempts}",
                workers=[address],
                allow_other_workers=False,
                resources={_RESOURCE: min(job.weight.memory, limit)},
                pure=False,
            )
        except Exception as error:
            raise SchedulerLostError(self._address) from error
        self._futures[job.name] = future
        future.add_done_callback(lambda ended: self._queue.put((job.name, ended)))

    def _run_here(self, name: str, data: bytes) -> None:
        outcome = decode_outcome(perform_sent(data, self._encoded_here))
        self._queue.put((name, outcome))

    def drop(self, name: str) -> None:
        if (future := self._futures.pop(name, None)) is not None:
            with suppress(Exception):  # of a scheduler that is gone too
                future.cancel()

    def end_worker(self, worker: FarmWorker) -> None:
        """It dies as if it was killed: its nanny, if it has one, starts another."""
        if (address := self._names.get(worker.name)) is not None:
            with suppress(Exception):  # it is gone already
                self._client.run(_end_process, workers=[address], wait=False, on_error="ignore")

    def wait(self, timeout: float) -> list[WorkerNews | JobNews | JobProgress]:
        self._look()
        if not self._news:
            with suppress(queue.Empty):
                self._take(*self._queue.get(timeout=timeout))
        while not self._queue.empty():
            self._take(*self._queue.get())
        news, self._news = self._news, []
        for item in news:
            if isinstance(item, WorkerNews) and item.kind is EventKind.WORKER_JOINED:
                self._known[item.worker.name] = item.worker
            elif isinstance(item, WorkerNews) and item.kind is EventKind.WORKER_LOST:
                self._known.pop(item.worker.name, None)
        return news

    @property
    def known(self) -> tuple[FarmWorker, ...]:
        return tuple(self._known.values())

    @property
    def time(self) -> float:
        return time.monotonic() - self._began

    @property
    def patience(self) -> float:
        if len(self._refused) < self._asked:
            return self._patience
        return 0.0 if self._same_machine else min(_REFUSED, self._patience)

    @property
    def dashboard(self) -> str:
        """The address of Dask's dashboard; empty where the scheduler has none."""
        try:
            import bokeh  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except ImportError:
            return ""
        return str(self._client.dashboard_link or "")

    @property
    def warning(self) -> str:
        """What anybody can do to a cluster without TLS; by the loopback, one is reached that others reach too."""
        if not self._address or has_tls(self._address):
            return ""
        try:
            listens = str(self._client.sync(self._client.scheduler.identity, n_workers=0)["address"])
        except Exception as error:
            raise SchedulerLostError(self._address) from error
        return unprotected(self._address) or unprotected(listens)

    # Jobs

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """What a worker says of its job; in a thread of Dask's."""
        said = event[1]
        self._queue.put((str(said.get("job")), JobProgress(str(said.get("job")), int(said.get("left", 0)))))

    def _take(self, name: str, future: Any) -> None:
        if isinstance(future, JobProgress | WorkerNews):
            self._news.append(future)
            return
        if isinstance(future, _Met):
            self._welcome(future)
            return
        if isinstance(future, JobOutcome):  # of this process
            self._news.append(JobNews(name, future))
            return
        if name not in self._futures or self._futures[name] is not future:
            return  # dropped
        del self._futures[name]
        if future.status == "finished":
            self._news.append(JobNews(name, _outcome(future)))
        elif future.status == "error":
            problem = future.exception()
            if type(problem).__name__ in ("KilledWorker", "NoValidWorkerError"):
                self._news.append(JobNews(name, None))
                return
            self._news.append(
                JobNews(
                    name,
                    JobOutcome(
                        done=False,
                        error_class=type(problem).__name__,
                        error=f"The worker could not run it: {problem}",
                        hint="`torchtailor farm check` says what the workers are.",
                        code=EnvironmentProblem.code,
                    ),
                )
            )
        else:  # cancelled: by a scheduler that restarted, or was lost
            self._news.append(JobNews(name, None))

    # Workers

    def _look(self) -> None:
        """Workers that came and went."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        if self._client.status != "running":
            raise SchedulerLostError(self._address)
        try:
            # not `scheduler_info`: what that returns is replaced by a timer, by one without workers
            said = self._client.sync(self._client.scheduler.identity, n_workers=-1)
            found: Mapping[str, Any] = said["workers"]
        except Exception as error:
            raise SchedulerLostError(self._address) from error
        for address in [address for address in self._workers if address not in found]:
            worker = self._workers.pop(address)
            self._names.pop(worker.name, None)
            self._news.append(WorkerNews(worker, EventKind.WORKER_LOST))
        for address in [address for address in self._refused if address not in found]:
            del self._refused[address]
        for address in [address for address in self._meetings if address not in found]:
            self._meetings.pop(address).cancel()
        for address, facts in found.items():
            if not any(address in seen for seen in (self._workers, self._refused, self._meetings)):
                self._begin_meeting(address, facts)

    def _begin_meeting(self, address: str, facts: Mapping[str, Any]) -> None:
        """All new workers are asked side by side, in Dask's own thread; jobs go on meanwhile."""
        if self._own is None:
            self._own = Fingerprint.of(describe_worker(), compiles=self._compiles)
        asking = self._meet(address, facts, self._own)
        self._meetings[address] = asyncio.run_coroutine_threadsafe(asking, self._client.loop.asyncio_loop)

    async def _meet(self, address: str, facts: Mapping[str, Any], own: Fingerprint) -> None:
        """Ask a new worker what it is, and report whether it may be used."""
        described = await self._ask(address, describe_worker)
        try:
            met = self._introduced(address, facts, described)
            why = own.refusal(Fingerprint.of(described, compiles=self._compiles), met.host)
        except (TypeError, KeyError, ValueError, AttributeError):  # an error of its own, or no torchtailor's answer
            met, why = _Met(address, FarmWorker(address)), f"{address} does not say what it is: {_shown(described)}."
        if not why:
            why = await self._sees_store(address, met.host)
        if not why and self._setup.objects:
            why = await self._reaches_objects(address, met.host)
        if not why:
            await self._ask(address, _offer, _RESOURCE, met.worker.memory)
        self._queue.put((address, replace(met, why=why)))

    def _introduced(self, address: str, facts: Mapping[str, Any], described: Any) -> _Met:
        given: Mapping[str, float] = facts.get("resources") or {}  # by who started it
        host = str(described["host"])
        worker = FarmWorker(
            f"{host}:{address.rpartition(':')[2]}",
            slots=int(facts.get("nthreads") or 1),
            memory=int(given.get(_RESOURCE) or facts.get("memory_limit") or described["memory"]),
            here=self._same_machine,
            machine=str(described["machine"]),
        )
        return _Met(address, worker, host, described=described)

    def _welcome(self, met: _Met) -> None:
        """Use or refuse a worker that has answered."""
        if self._meetings.pop(met.address, None) is None:
            return  # it went meanwhile
        self.facts[met.worker.name] = met.described
        if met.why:
            self._refused[met.address] = met.why
            self._news.append(WorkerNews(met.worker, EventKind.WORKER_REFUSED, met.why))
            return
        self._workers[met.address] = met.worker
        self._names[met.worker.name] = met.address
        self._news.append(WorkerNews(met.worker, EventKind.WORKER_JOINED))

    async def _ask(self, address: str, function: Callable[..., object], *given: object) -> Any:
        """What a function returns or raises on a worker, even one that is busy; no answer is not a no, and one that is
        late is asked again for as long as it is there."""
        silent = False
        while True:
            question = self._client._run(function, *given, workers=[address], on_error="return")
            with suppress(TimeoutError, OSError):
                answers = await asyncio.wait_for(question, _ANSWER)
                if address in answers and not isinstance(answers[address], TimeoutError | OSError):
                    return answers[address]
            if not silent:
                silent = True
                text = f"{address} has not answered yet; it is asked again."
                self._queue.put((address, WorkerNews(FarmWorker(address), EventKind.WORKER_SILENT, text)))
            await asyncio.sleep(_LOOK)

    async def _sees_store(self, address: str, host: str) -> str:
        """A folder of this machine is another folder, or none, on another one."""
        said = await self._ask(address, _read_token, self._setup.store, self._token)
        if said == self._token:
            return ""
        reason = f": {_shown(said)}" if said else "."
        return f"{host} does not see what is written to the store {self._store.shown}{reason}"

    async def _reaches_objects(self, address: str, host: str) -> str:
        """A wrong address is said before anything is compiled twice; what is gone later only makes it slower."""
        said = await self._ask(address, why_unreachable, self._setup.objects)
        self._objects_seen = self._objects_seen or said == ""
        return "" if self._objects_seen or not isinstance(said, str) else f"On {host}, {said}"

    def close(self) -> None:
        """What workers still run goes on to the store; nobody waits for it."""
        with suppress(Exception):  # of a scheduler that is gone too
            self._client.unsubscribe_topic(TOPIC)
        for name in [*self._futures]:
            self.drop(name)
        for meeting in self._meetings.values():
            meeting.cancel()
        with suppress(TorchtailorError):
            self._store.remove_text(self._token)


def _outcome(future: Any) -> JobOutcome:
    """What a worker says came of its job; what is no such thing is a failure of the worker's."""
    try:
        return msgspec.json.decode(future.result(), type=shaped(JobOutcome))
    except Exception as error:  # also of what cannot be unpickled
        return JobOutcome(
            done=False,
            error_class=type(error).__name__,
            error=f"The worker's answer cannot be read: {_shown(error)}.",
            hint="`torchtailor farm check` says what the workers are.",
            code=EnvironmentProblem.code,
        )


def _shown(said: object) -> str:
    """What a worker said, in a line."""
    return " ".join(str(said).split())[:_SHOWN].rstrip(".") or type(said).__name__


def _end_process() -> None:
    """On a worker whose job does not end, and cannot be stopped in any other way."""
    os._exit(1)


async def _offer(resource: str, amount: int, dask_worker: Any) -> None:
    """On a worker: say how much memory its jobs may hold, where who started it did not."""
    known = dask_worker.state.total_resources.get(resource, amount)
    # Also where another client has just set it: a job that comes before the scheduler knows is never started.
    await dask_worker.set_resources(**{resource: known})


def _read_token(store: str, name: str) -> str:
    """On a worker: what the store has under a name, or why it cannot be read."""
    try:
        return open_farm_store(store).read_text(name) or ""
    except TorchtailorError as error:
        return error.message


def quiet_dask() -> None:
    """What Dask logs of workers and schedulers that come and go, the farm says itself, in a sentence."""
    configured = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", "asyncio", "tornado.application", *configured):  # several have levels of their own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"distributed\b")  # of a dashboard's port that is taken


class _Unserved:
    """Dask's pages are for everybody who reaches them, and it has no option for none."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


class LocalScheduler(_Unserved, Scheduler):  # type: ignore[misc]
    """A scheduler for one run on this machine."""


class LocalWorker(_Unserved, Worker):  # type: ignore[misc]
    """A worker for one run on this machine."""


def local_cluster(workers: int) -> SpecCluster:
    """Processes of this machine; whoever has not the key, which is made for this run, cannot speak with them.

    The key is in the memory of this process and goes to the workers through a pipe. A file that OpenSSL reads it from
    is in a folder that only its owner can enter, for a moment.
    """
    security = Security.temporary()
    options = {"host": "127.0.0.1", "protocol": "tls://", "security": security}
    own = {
        "nthreads": 1,
        "memory_limit": parse_memory_limit("auto", 1, workers, logger=logging.getLogger(__name__)),
        "worker_class": LocalWorker,
        "silence_logs": 50,
    }
    return SpecCluster(
        scheduler={"cls": LocalScheduler, "options": {**options, "port": 0, "dashboard": False}},
        workers={number: {"cls": Nanny, "options": {**options, **own}} for number in range(workers)},
        security=security,
        silence_logs=logging.CRITICAL,
    )


def client_keys(address: str) -> ssl.SSLContext:
    """What Dask is configured to show to a scheduler with TLS, and to accept of it; refused where it is incomplete."""
    try:
        security = Security()
    except ValueError as error:  # of a version of TLS that there is not
        raise EnvironmentProblem(f"Dask's configuration of TLS is wrong: {error}.", _CONFIGURE) from error
    settings = security.get_tls_config_for_role("client")
    files = {"ca-file": settings["ca_file"], "client.cert": settings["cert"], "client.key": settings["key"]}
    for name, file in files.items():
        if not file and name != "client.key":  # which may be in the same file as the certificate
            raise EnvironmentProblem(f"{address} needs `distributed.comm.tls.{name}`, which is not set.", _CONFIGURE)
        if file and "\n" not in file:
            try:
                with Path(file).open("rb"):
                    pass
            except OSError as error:
                raise EnvironmentProblem(
                    f"{file}, Dask's `distributed.comm.tls.{name}`, cannot be read: {error.strerror}.", _CONFIGURE
                ) from error
    try:
        if "\n" not in f"{settings['cert']}{settings['key'] or ''}":
            # Dask would ask for the password of a key on the terminal
            ssl.create_default_context().load_cert_chain(settings["cert"], settings["key"], password=lambda: b"")
        context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
    except (ssl.SSLError, ValueError) as error:
        reason = (getattr(error, "reason", None) or "not PEM, or with a password").replace("_", " ").lower()
        raise EnvironmentProblem(
            f"Dask's CA, certificate and key for {address} cannot be used: {reason}.", _CONFIGURE
        ) from error
    return context
