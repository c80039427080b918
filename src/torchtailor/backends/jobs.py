"""The work of a build as values that can be sent to another machine: fetch a wheel, cut it, pack a wheelhouse.

A job has no paths; files are named by their sha256. `run_job` does the same work wherever it runs and gives the same
bytes. The build itself is made of these jobs; it only batches them: downloads in parallel, all GPUs of one wheel in one
pass. The URL of a fetch job holds the credentials of the index, if it has any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.backends.cutting import CutOptions, Cutter, WheelCut, cut_key, parse_gpu
from torchtailor.backends.progress import BuildProgress, NoBuildProgress
from torchtailor.catalog import Capability, Catalog
from torchtailor.disk import DamagedFileError, disk_errors
from torchtailor.errors import BadInputError, CheckFailedError, EnvironmentProblem, ImpossibleError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Downloader, Fetched
from torchtailor.fetch.pages import WheelAddress
from torchtailor.version import code_key
from torchtailor.wheelhouse.entry import StockWheel, WheelhouseDescription, WheelhouseEntry, WheelStep
from torchtailor.wheelhouse.places import check_place
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, write_wheelhouse
from torchtailor.wheels.name import WheelName


class FetchWheel(msgspec.Struct, frozen=True, tag="fetch"):
    """Download a wheel into the cache."""

    wheel: WheelAddress

    @property
    def key(self) -> str:
        """Of the wheel's content where the index lists its hash, else of its URL."""
        return self.wheel.key


class CutWheel(msgspec.Struct, frozen=True, tag="cut"):
    """Cut a wheel for one GPU; the result is in the cache under `key`."""

    sha256: str
    filename: str
    gpu: str  # its compute capability; `none`: for machines without one
    options: CutOptions

    @property
    def capability(self) -> Capability | None:
        return parse_gpu(self.gpu)

    @property
    def key(self) -> str:
        return cut_key(self.sha256, self.filename, self.capability, self.options)


class WheelToPack(msgspec.Struct, frozen=True):
    """A wheel of a wheelhouse: the official one, or what is cut out of it."""

    filename: str
    sha256: str
    size: int
    url: str = ""
    required_by: tuple[str, ...] = ()
    cut: CutWheel | None = None
    why: str = ""  # why it is not cut


class PackWheelhouse(msgspec.Struct, frozen=True, tag="pack"):
    """Write the wheelhouse of a variant."""

    description: WheelhouseDescription
    wheels: tuple[WheelToPack, ...]

    @property
    def key(self) -> str:
        """Of all wheels in it, of the description and of this code."""
        inputs = [code_key(), *(wheel.cut.key for wheel in self.wheels if wheel.cut)]
        return hashlib.sha256("\n".join(inputs).encode() + encode_job(self)).hexdigest()


Job = FetchWheel | CutWheel | PackWheelhouse


def encode_job(job: msgspec.Struct) -> bytes:
    """A job as JSON; the same job gives the same bytes."""
    return msgspec.json.encode(job, order="deterministic")


def decode_job(data: bytes, kinds: Any = Job) -> Any:
    """The job, one of these kinds, of a JSON document that `encode_job` made."""
    try:
        return msgspec.json.decode(data, type=kinds)
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"This is not a job of torchtailor: {error}.", "Use the same version on every machine."
        ) from error


@dataclass
class JobContext:
    """What jobs use of the machine they run on."""

    catalog: Catalog
    cache: Cache
    downloader: Downloader
    out: Path
    progress: BuildProgress = field(default_factory=NoBuildProgress)
    processes: int = 2  # that cut the libraries of one wheel
    fetched: dict[str, Path] = field(default_factory=dict, init=False)  # by sha256; also wheels outside the cache
    addresses: dict[str, WheelAddress] = field(default_factory=dict, init=False)  # that they came from
    cuts: dict[str, WheelCut | None] = field(default_factory=dict, init=False)  # by key; None: no code runs there

    def locate(self, sha256: str, filename: str) -> Path:
        """A wheel that was fetched, by this build or an earlier one; it may be damaged."""
        path = self.fetched.get(sha256) or self.cache.locate(sha256, filename)
        if path is None:
            raise EnvironmentProblem(f"{filename} is not in the cache {self.cache.root}.", "Run its fetch job first.")
        return path

    def find(self, sha256: str, filename: str) -> Path:
        """The same of a wheel whose bytes are used: one of the cache that is damaged is fetched again."""
        path = self.locate(sha256, filename)
        if not path.is_relative_to(self.cache.root) or self.cache.find(sha256, filename) is not None:
            return path
        if sha256 in self.addresses:
            fetch_all([FetchWheel(self.addresses[sha256])], self)
        return self.locate(sha256, filename)

    def without(self, damaged: DamagedFileError) -> CheckFailedError:
        """Remove a damaged file from the cache, so that the next build makes or fetches it again."""
        if not self.cache.discard(damaged.path):
            return damaged
        return CheckFailedError(damaged.message, "It was removed from the cache: run the same command again.")


def run_job(job: Job, context: JobContext) -> Fetched | WheelCut | Wheelhouse:
    """Run one job; the jobs whose results it uses must have run before."""
    match job:
        case FetchWheel():
            return fetch_all([job], context)[job.wheel.url]
        case CutWheel():
            return _cut(job, context)
        case PackWheelhouse():
            return pack(job, context)


def fetch_all(jobs: Sequence[FetchWheel], context: JobContext) -> Mapping[str, Fetched]:
    """Download several wheels in parallel; by URL."""
    with disk_errors(context.cache.root, unchanged="Finished downloads are kept."):
        fetched = context.downloader.fetch([job.wheel for job in jobs], context.progress)
    context.fetched |= {item.sha256: item.path for item in fetched.values()}
    context.addresses |= {item.sha256: item.file for item in fetched.values()}
    return fetched


def cut_all(jobs: Sequence[CutWheel], context: JobContext) -> tuple[WheelCut, ...]:
    """Cut one wheel for several GPUs in one pass; GPUs that none of its code runs on are left out."""
    first = jobs[0]
    path = context.locate(first.sha256, first.filename)
    project = WheelName.parse(Path(first.filename)).project

    def before_cut(gpus: Sequence[Capability | None]) -> None:
        context.find(first.sha256, first.filename)
        names = ", ".join(str(gpu) if gpu else "machines without a GPU" for gpu in gpus)
        context.progress.stage(f"Cutting {project} for {names}")

    cutter = Cutter(context.catalog, context.cache, first.options, processes=context.processes)
    gpus = [job.capability for job in jobs]
    with disk_errors(context.cache.root, unchanged="The downloaded wheels are kept."):
        cuts = cutter.cut(path, first.sha256, first.filename, gpus, context.progress, before_cut)
    context.cuts |= {job.key: cuts.get(job.capability) for job in jobs}
    return tuple(cuts.values())


def _cut(job: CutWheel, context: JobContext) -> WheelCut:
    if job.key not in context.cuts:
        cut_all([job], context)
    cut = context.cuts[job.key]
    if cut is None:
        raise ImpossibleError(
            f"{job.filename} holds GPU code, and none of it runs on {job.gpu}.",
            "Choose another release, or build it with --via source.",
        )
    return cut


def pack(job: PackWheelhouse, context: JobContext) -> Wheelhouse:
    """Write a wheelhouse into the context's `out`."""
    entries = packed_entries(job, context)
    check_place(context.out / job.description.variant)
    with disk_errors(context.out, unchanged="An earlier wheelhouse is unchanged."):
        try:
            return write_wheelhouse(job.description, entries, context.out, cache=context.cache.root)
        except DamagedFileError as error:
            raise context.without(error) from error


def packed_entries(job: PackWheelhouse, context: JobContext) -> tuple[WheelhouseEntry, ...]:
    """The wheels of a wheelhouse, found in the cache."""
    return tuple(entry for wheel in job.wheels for entry in _entries(wheel, context))


def _entries(wheel: WheelToPack, context: JobContext) -> Iterator[WheelhouseEntry]:
    """A wheel as it is, cut, or split in two."""
    path = context.locate(wheel.sha256, wheel.filename)
    stock = StockWheel(path, wheel.filename, wheel.sha256, wheel.size, wheel.url)
    cut = _cut(wheel.cut, context) if wheel.cut else None
    if cut is None or not cut.changed:
        path = context.find(wheel.sha256, wheel.filename)
        yield WheelhouseEntry(
            path, wheel.filename, wheel.sha256, WheelStep.UNCHANGED, wheel.required_by, stock, why=wheel.why
        )
        return
    yield WheelhouseEntry(cut.path, cut.path.name, cut.sha256, WheelStep.CUT, wheel.required_by, stock, cut.libraries)
    if pack := cut.pack:
        project = WheelName.parse(Path(wheel.filename)).project
        yield WheelhouseEntry(pack.path, pack.path.name, pack.sha256, WheelStep.PACKS, (f"{project}[{pack.target}]",))
