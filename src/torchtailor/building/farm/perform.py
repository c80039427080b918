"""Runs one job on the machine it was sent to: inputs come from the store, the work is that of any build, and what it
gives goes to the store."""

from __future__ import annotations

import hashlib
import shutil
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from torchtailor.building.cutting import WheelCut, cut_key, parse_gpus, read_cut
from torchtailor.building.farm.jobs import FarmJob, inputs_of
from torchtailor.building.farm.records import FarmFile, JobRecord
from torchtailor.building.farm.store import FarmStore, MissingOutputError, open_farm_store
from torchtailor.building.graph.events import JobOutcome
from torchtailor.building.graph.graph import decode_job
from torchtailor.building.nix.derivations import RealiseDerivation
from torchtailor.building.source.jobs import CompileShard, ConfigureSource, FetchSource, LinkSource, PackSource
from torchtailor.building.wheel_jobs import (
    PROVEN_LEVEL,
    CutForGpus,
    FetchWheel,
    JobContext,
    PackVariant,
    ProveVariant,
    cut_all,
    fetch_all,
    pack,
    packed_entries,
    useless,
)
from torchtailor.catalog import Catalog, load_catalog
from torchtailor.catalog.load import USER_FILE
from torchtailor.core.cgroups import available_cores
from torchtailor.core.disk import disk_errors, is_intact, share_intact, staging_folder
from torchtailor.core.errors import BadInputError, CheckFailedError, ExitCode, TorchtailorError
from torchtailor.core.shapes import shaped
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.settings import read_settings

if TYPE_CHECKING:
    from torchtailor.building.farm.compile import CompileBench

_KEPT = "Finished jobs are kept in the store."
_LOG = 20_000  # letters of a log that come back


class WorkerSetup(msgspec.Struct, frozen=True):
    """What every worker of a run is told once."""

    store: str
    user_file: str = ""  # the text of the user's torchtailor.toml, which adds to the catalog
    processes: int = 1  # that one job may start; 0: as many as its machine has room for
    objects: str = ""  # ccache's remote storage
    cache: str = ""  # where it keeps what it has fetched; the machine's own cache folder where that is empty
    secret: str = ""  # that signs the records of the store
    intact: str = ""  # a file of this machine: what one of its processes has read and found right, no other one reads

    @property
    def here(self) -> WorkerSetup:
        """Of the machine that the command was given on, which has no disk of a worker's."""
        return msgspec.structs.replace(self, cache="")


@dataclass
class Workbench:
    """What a job uses of the machine it runs on."""

    store: FarmStore
    catalog: Catalog
    cache: Cache
    client: Client
    processes: int = 1  # 0: as many as the machine has room for
    objects: str = ""
    place: str = ""  # of the store, as it was given

    @property
    def compiling(self) -> CompileBench:
        from torchtailor.building.farm.compile import CompileBench

        return CompileBench(self.store, self.catalog, self.cache, self.objects, self.processes or None)

    def context(self, out: Path) -> JobContext:
        downloader = Downloader(self.client, self.cache)  # of its own: one that stopped does not go on
        return JobContext(self.catalog, self.cache, downloader, out, processes=self.processes or available_cores())


@lru_cache(maxsize=4)
def workbench(setup: WorkerSetup) -> Workbench:
    """The workbench of this process."""
    cache = Cache(Path(setup.cache) if setup.cache else None)
    client = Client(read_settings())
    catalog = _catalog(setup.user_file, cache)
    if setup.intact:
        share_intact(Path(setup.intact))
    store = open_farm_store(setup.store, setup.secret)
    return Workbench(store, catalog, cache, client, setup.processes, setup.objects, setup.store)


def _catalog(text: str, cache: Cache) -> Catalog:
    with staging_folder(cache.root) as folder:
        if text:
            (folder / USER_FILE).write_text(text, "utf-8")
        return load_catalog(folder)


def perform_sent(data: bytes, setup: bytes) -> bytes:
    """Run a job that was sent as JSON; what came of it, as JSON. Nothing is raised: errors are outcomes too."""
    began = time.monotonic()
    try:
        job: FarmJob = decode_job(data, FarmJob)
        outcome = perform(job, workbench(msgspec.json.decode(setup, type=shaped(WorkerSetup))))
    except TorchtailorError as error:
        outcome = failed(error)
    except Exception as error:
        outcome = JobOutcome(
            done=False,
            error_class=type(error).__name__,
            error=f"{type(error).__name__}: {error}",
            hint="This is a bug in torchtailor: please report it, with the log.",
            code=ExitCode.INTERNAL,
            log=traceback.format_exc()[-_LOG:],
        )
    outcome = msgspec.structs.replace(outcome, worker=socket.gethostname(), seconds=time.monotonic() - began)
    return msgspec.json.encode(outcome)


def failed(error: TorchtailorError) -> JobOutcome:
    """The outcome of a job that ended with an error."""
    return JobOutcome(
        done=False,
        error_class=type(error).__name__,
        error=error.message,
        hint=error.hint,
        code=error.code,
        missing=error.key if isinstance(error, MissingOutputError) else "",
        failure=str(getattr(error, "failure", "")),
        log=_log_of(error),
        log_path=str(getattr(error, "log", "")),
    )


def _log_of(error: TorchtailorError) -> str:
    """The end of the log that an error of a build names, which is on this machine only."""
    path = getattr(error, "log", None)
    if not isinstance(path, Path):
        return ""
    try:
        return path.read_bytes()[-_LOG:].decode("utf-8", "replace")
    except OSError:
        return ""


def perform(job: FarmJob, bench: Workbench) -> JobOutcome:
    """Run a job; its outputs are in the store afterwards."""
    if isinstance(job, FetchWheel) and job.wheel.sha256:
        bench.store.demand(job.gives)
    missing = [key for key in job.gives if bench.store.record(key) is None]
    if not missing:
        return JobOutcome(done=True, cached=True, hits=len(job.gives))
    match job:
        case FetchWheel():
            return _fetch(job, bench)
        case CutForGpus():
            return _cut(job, bench, frozenset(missing))
        case PackVariant():
            return _pack(job, bench)
        case ProveVariant():
            return _prove(job, bench)
        case FetchSource() | ConfigureSource() | CompileShard() | LinkSource():
            return _source(job, bench)
        case PackSource():
            return _pack_source(job, bench)
        case RealiseDerivation():
            return _realise(job, bench)


def _source(job: FetchSource | ConfigureSource | CompileShard | LinkSource, bench: Workbench) -> JobOutcome:
    from torchtailor.building.farm import compile as compiling

    began = time.monotonic()
    match job:
        case FetchSource():
            record = compiling.fetch_source(job, bench.compiling)
        case ConfigureSource():
            record = compiling.configure_source(job, bench.compiling)
        case CompileShard():
            record = compiling.compile_shard(job, bench.compiling)
        case LinkSource():
            record = compiling.link_source(job, bench.compiling)
    _finish(bench, job, record, began)
    return JobOutcome(done=True, hits=int(record.facts.get("hits", 0)), misses=int(record.facts.get("misses", 0)))


def _pack_source(job: PackSource, bench: Workbench) -> JobOutcome:
    from torchtailor.building.farm.compile import pack_source

    began = time.monotonic()
    with staging_folder(bench.cache.root) as staging:
        house = pack_source(job, bench.compiling, staging)
        _finish(bench, job, JobRecord("pack", _stored(house, bench), {"variant": house.name}), began)
    return JobOutcome(done=True)


def _realise(job: RealiseDerivation, bench: Workbench) -> JobOutcome:
    from torchtailor.building.nix.derivations import realise

    began = time.monotonic()
    record = realise(job, bench.place, bench.cache.root, cores=bench.processes or available_cores())
    _finish(bench, job, record, began)
    return JobOutcome(done=True)


def _stored(folder: Path, bench: Workbench, known: Mapping[str, str] | None = None) -> tuple[FarmFile, ...]:
    """All files of a folder in the store; of some the SHA-256 is known by name."""
    return tuple(
        bench.store.put(path, path.relative_to(folder).as_posix(), (known or {}).get(path.name))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def _fetch(job: FetchWheel, bench: Workbench) -> JobOutcome:
    began = time.monotonic()
    fetched = fetch_all([job], bench.context(bench.cache.root))[job.wheel.url]
    file = bench.store.put(fetched.path, job.wheel.filename, fetched.sha256)
    _finish(bench, job, JobRecord("fetch", (file,)), began)
    return JobOutcome(done=True, downloaded=fetched.downloaded, hits=int(not fetched.downloaded))


def _cut(job: CutForGpus, bench: Workbench, missing: frozenset[str]) -> JobOutcome:
    """Those GPUs that the store does not have."""
    began = time.monotonic()
    context = bench.context(bench.cache.root)
    sha256 = restore_wheel(job.source, job.filename, context, bench.store)
    left = msgspec.structs.replace(job, gpus=tuple(gpu for gpu in job.gpus if job.key_for(gpu) in missing))
    cuts = cut_all(left, context)
    for gpu in left.gpus:
        key = job.key_for(gpu)
        _finish(bench, job, _cut_record(_made(job, gpu, sha256), context.cuts[key], bench), began, key)
    known = sum(cut.from_cache for cut in cuts) + len(job.gpus) - len(left.gpus)
    return JobOutcome(done=True, hits=known, misses=len(job.gpus) - known)


def _made(job: CutForGpus, gpu: str, sha256: str) -> str:
    """The key under which a machine's own cache has a cut: of the content that was fetched."""
    return cut_key(sha256, job.filename, parse_gpus(gpu), job.options)


def _cut_record(made: str, cut: WheelCut | None, bench: Workbench) -> JobRecord:
    """The cut wheel and what is known of it; nothing but that where none of its code runs on the GPU."""
    if cut is None:
        return JobRecord("cut", (), {"useless": True})
    return JobRecord("cut", _stored(bench.cache.made(made), bench, {cut.path.name: cut.sha256}))


def _pack(job: PackVariant, bench: Workbench) -> JobOutcome:
    began = time.monotonic()
    with staging_folder(bench.cache.root) as staging:
        context = bench.context(staging)
        restore_packed(job, context, bench.store)
        known = {entry.filename: entry.sha256 for entry in packed_entries(job, context)}
        house = pack(job, context)
        files = _stored(house.path, bench, known)
        _finish(bench, job, JobRecord("pack", files, {"variant": job.description.variant}), began)
    return JobOutcome(done=True)


def restore_packed(job: PackVariant, context: JobContext, store: FarmStore, *, stock: bool = False) -> None:
    """Put all that a job packs into this machine's cache; with `stock`, also the official wheels that cut ones were
    made of."""
    for wheel in job.wheels:
        sha256 = _fetched(wheel.source, wheel.filename, store).sha256
        # of a wheel that was cut, only name and hash are written into the manifest: it need not be on this machine
        context.digests[wheel.source] = sha256
        context.fetched[sha256] = context.cache.root / "not-fetched" / wheel.filename
        cut = job.cut_of(wheel)
        changed = cut is not None and _restore_cut(cut, sha256, context, store)
        if stock or not changed:
            del context.fetched[sha256]
            restore_wheel(wheel.source, wheel.filename, context, store)


def _fetched(key: str, filename: str, store: FarmStore) -> FarmFile:
    """A fetched wheel of the store; a record of another file is of no use."""
    files = store.need(key).files
    if [file.path for file in files] != [filename]:
        store.forget(key)
        raise MissingOutputError(key, store.shown)
    return files[0]


def restore_wheel(key: str, filename: str, context: JobContext, store: FarmStore) -> str:
    """Put a fetched wheel of the store into this machine's cache; its SHA-256."""
    file = _fetched(key, filename, store)
    if context.cache.find(file.sha256, file.path) is None:
        with disk_errors(context.cache.root, unchanged=_KEPT), context.cache.staging() as staging:
            store.get(key, file, staging / file.path)
            context.cache.adopt(staging / file.path, file.sha256, file.path)
    context.digests[key] = file.sha256
    return file.sha256


def _restore_cut(job: CutForGpus, sha256: str, context: JobContext, store: FarmStore) -> bool:
    """Put what was cut on another machine, for one GPU, into this one's cache; whether anything was cut.

    It has a place of its own there: what others say that a cut is becomes nothing that this machine has cut.
    """
    (gpu,) = job.gpus
    key, made = job.key_for(gpu), _made(job, gpu, sha256)
    record = store.need(key)
    if record.facts.get("useless"):
        raise useless(job.filename, gpu)

    def complete(folder: Path) -> bool:
        return all(is_intact(folder / file.path, file.sha256) for file in record.files)

    place = context.cache.made(made)
    if not complete(place):
        received = hashlib.sha256(f"{made} {record.digest}".encode()).hexdigest()
        place = context.cache.made(received)
        if not complete(place):
            with disk_errors(context.cache.root, unchanged=_KEPT), context.cache.staging() as staging:
                store.get_all(key, [(file, staging / "cut" / file.path) for file in record.files], link=True)
                context.cache.put_made(received, staging / "cut", complete)
    cut = read_cut(place, context.fetched[sha256])
    if cut is None:  # its files are whole, and do not say of each other what they are
        store.forget(key)
        raise MissingOutputError(key, store.shown)
    context.cuts[key] = cut
    return cut.changed


def _prove(job: ProveVariant, bench: Workbench) -> JobOutcome:
    import torchtailor.code.hostcode  # noqa: F401  # without its extra `verify` leaves host code out: no proof for all
    from torchtailor.verification.result import Level
    from torchtailor.verification.verify import verify

    began = time.monotonic()
    with staging_folder(bench.cache.root) as staging:
        folder = restore_folder(job.wheelhouse, staging / job.variant, bench.store)
        gpus = (job.gpu,) if job.gpu else ()
        try:
            report = verify(folder, gpus=gpus, level=Level(PROVEN_LEVEL), catalog=bench.catalog)
        except BadInputError as error:
            raise _unproven(job, error.message) from error
    if report.failures:
        raise _unproven(job, "; ".join(f"{check.name}: {check.reason}" for check in report.failures[:3]))
    checks = {check.name: check.outcome.value for check in report.checks}
    _finish(bench, job, JobRecord("prove", (), {"checks": checks}), began)
    return JobOutcome(done=True)


def _unproven(job: ProveVariant, reasons: str) -> CheckFailedError:
    return CheckFailedError(
        f"The wheelhouse of {job.variant} is not what it should be. {reasons}",
        "The same command makes it again. If that fails too, look at the workers, or report it.",
    )


def restore_folder(key: str, folder: Path, store: FarmStore) -> Path:
    """Put all files of an output into a new folder."""
    record = store.need(key)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        store.get_all(key, [(file, folder / file.path) for file in record.files])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _finish(bench: Workbench, job: FarmJob, record: JobRecord, began: float, key: str = "") -> None:
    """Say in the store that a job has made its output, or the one of several that has this key."""
    made = msgspec.structs.replace(
        record,
        worker=socket.gethostname(),
        seconds=round(time.monotonic() - began, 3),
        inputs={needed: bench.store.need(needed).digest for needed in inputs_of(job)},
    )
    bench.store.finish(key or job.gives[0], made)
