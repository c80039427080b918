"""The work of a build as values that can be sent to another machine: fetch a wheel, cut it, pack a wheelhouse.

A job has no paths: what it needs and gives is named by keys of content, made of the keys of its inputs, its options and
the code that does it. So a key is known before anything is fetched, and the same work has the same key, and gives the
same bytes, on every machine. The URL of a fetch job holds the credentials of the index, if it has any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from torchtailor.building.cutting import Cutter, Gpus, WheelCut, cut_key, parse_gpus, shown_gpus
from torchtailor.building.graph.graph import job_key
from torchtailor.catalog import Catalog
from torchtailor.code.gpucode.targets import NO_GPU
from torchtailor.core.disk import DamagedFileError, disk_errors
from torchtailor.core.errors import CheckFailedError, EnvironmentProblem, ImpossibleError
from torchtailor.core.progress import Progress
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Downloader, Fetched
from torchtailor.fetch.pages import WheelAddress
from torchtailor.surgery.cut_document import JobCut
from torchtailor.trees.wheels.name import WheelName
from torchtailor.wheelhouse.entry import StockWheel, WheelhouseDescription, WheelhouseEntry, WheelStep
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, check_place, write_wheelhouse


class FetchWheel(msgspec.Struct, frozen=True, tag="fetch"):
    """Download a wheel into the cache."""

    wheel: WheelAddress

    @property
    def key(self) -> str:
        """Of the wheel's content where the index lists its hash, else of its URL."""
        return self.wheel.key

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    @property
    def gives(self) -> tuple[str, ...]:
        return (self.key,)


class SplitWheel(msgspec.Struct, frozen=True):
    """A wheel that is split for the same GPUs as torch, whose extras bring its packs too."""

    project: str
    source: str
    filename: str


class CutForGpus(msgspec.Struct, frozen=True, tag="cut"):
    """Cut one wheel for several GPUs in one pass; each GPU has an output of its own."""

    source: str  # the key of the fetched wheel
    filename: str
    gpus: tuple[str, ...]
    options: JobCut
    beside: tuple[SplitWheel, ...] = ()  # of torch, where it is split

    def key_for(self, gpu: str) -> str:
        own = cut_key(self.source, self.filename, parse_gpus(gpu), self.options)
        others = self.keys_beside(gpu).values()
        return hashlib.sha256("\n".join((own, *others)).encode()).hexdigest() if others else own

    def keys_beside(self, gpu: str) -> dict[str, str]:
        """The keys of the other cuts that decide what is required, by project."""
        capability = parse_gpus(gpu)
        return {other.project: cut_key(other.source, other.filename, capability, self.options) for other in self.beside}

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.source, *(key for gpu in self.gpus for key in self.keys_beside(gpu).values()))

    @property
    def gives(self) -> tuple[str, ...]:
        return tuple(map(self.key_for, self.gpus))


class PackedWheel(msgspec.Struct, frozen=True):
    """A wheel of a wheelhouse: the fetched one, or what is cut out of it."""

    filename: str
    size: int
    source: str  # the key of the fetched wheel
    url: str = ""
    required_by: tuple[str, ...] = ()
    cut: JobCut | None = None
    beside: tuple[SplitWheel, ...] = ()  # of torch, where it is split
    why: str = ""  # why it is not cut


class PackVariant(msgspec.Struct, frozen=True, tag="pack"):
    """Write the wheelhouse of a variant."""

    description: WheelhouseDescription
    wheels: tuple[PackedWheel, ...]

    def cut_of(self, wheel: PackedWheel) -> CutForGpus | None:
        """The cut that a wheel of it is taken from."""
        if wheel.cut is None:
            return None
        return CutForGpus(wheel.source, wheel.filename, (self.description.gpu or NO_GPU,), wheel.cut, wheel.beside)

    @property
    def needs(self) -> tuple[str, ...]:
        keys = []
        for wheel in self.wheels:
            keys.append(wheel.source)
            if cut := self.cut_of(wheel):
                keys.append(cut.key_for(cut.gpus[0]))
        return tuple(dict.fromkeys(keys))

    @property
    def gives(self) -> tuple[str, ...]:
        return (job_key("pack", self, *self.needs),)


PROVEN_LEVEL = "static"  # of `verify`: a worker need not be able to run what it has built


class ProveVariant(msgspec.Struct, frozen=True, tag="prove"):
    """Verify a wheelhouse, as `torchtailor verify --level static` does."""

    wheelhouse: str  # its key
    variant: str
    gpu: str | None
    rows: str = ""  # a digest of the user's rows of the catalog, by which it is judged

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.wheelhouse,)

    @property
    def gives(self) -> tuple[str, ...]:
        return (job_key("prove", self),)


WheelJob = FetchWheel | CutForGpus | PackVariant | ProveVariant


@dataclass
class JobContext:
    """What jobs use of the machine they run on."""

    catalog: Catalog
    cache: Cache
    downloader: Downloader
    out: Path
    progress: Progress = field(default_factory=Progress)
    processes: int = 2  # that cut the libraries of one wheel
    digests: dict[str, str] = field(default_factory=dict, init=False)  # of fetched wheels, by their keys
    fetched: dict[str, Path] = field(default_factory=dict, init=False)  # by sha256; also wheels outside the cache
    addresses: dict[str, WheelAddress] = field(default_factory=dict, init=False)  # that they came from
    cuts: dict[str, WheelCut | None] = field(default_factory=dict, init=False)  # by key; None: no code runs there

    def digest(self, source: str, filename: str) -> str:
        """The SHA-256 of a wheel that was fetched, by its key."""
        if source not in self.digests:
            raise EnvironmentProblem(f"{filename} is not in the cache {self.cache.root}.", "Run its fetch job first.")
        return self.digests[source]

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


def fetch_all(jobs: Sequence[FetchWheel], context: JobContext) -> Mapping[str, Fetched]:
    """Download several wheels in parallel; by URL."""
    with disk_errors(context.cache.root, unchanged="Finished downloads are kept."):
        fetched = context.downloader.fetch([job.wheel for job in jobs], context.progress)
    context.digests |= {item.file.key: item.sha256 for item in fetched.values()}
    context.fetched |= {item.sha256: item.path for item in fetched.values()}
    context.addresses |= {item.sha256: item.file for item in fetched.values()}
    return fetched


def cut_all(job: CutForGpus, context: JobContext) -> tuple[WheelCut, ...]:
    """Cut one wheel for several GPUs in one pass; GPUs that none of its code runs on are left out."""
    sha256 = context.digest(job.source, job.filename)
    path = context.locate(sha256, job.filename)
    project = WheelName.parse(Path(job.filename)).project

    def before_cut(gpus: Sequence[Gpus]) -> None:
        context.find(sha256, job.filename)
        names = ", ".join(shown_gpus(gpu) if gpu else "machines without a GPU" for gpu in gpus)
        context.progress.stage(f"Cutting {project} for {names}")

    done: list[WheelCut] = []
    for also, gpus in _by_packs(job, context).items():
        options = msgspec.structs.replace(job.options, also=also) if also else job.options
        cutter = Cutter(context.catalog, context.cache, options, processes=context.processes)
        with disk_errors(context.cache.root, unchanged="The downloaded wheels are kept."):
            cuts = cutter.cut(path, sha256, job.filename, [*map(parse_gpus, gpus)], context.progress, before_cut)
        context.cuts |= {job.key_for(gpu): cuts.get(parse_gpus(gpu)) for gpu in gpus}
        done += cuts.values()
    return tuple(done)


def _by_packs(job: CutForGpus, context: JobContext) -> dict[tuple[str, ...], list[str]]:
    """The GPUs of a job, by the wheels beside it that were split and have packs for them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu in job.gpus:
        cuts = {project: context.cuts.get(key) for project, key in job.keys_beside(gpu).items()}
        groups.setdefault(tuple(project for project, cut in cuts.items() if cut and cut.pack), []).append(gpu)
    return groups


def _cut(job: CutForGpus, context: JobContext) -> WheelCut:
    """What was cut for the one GPU of a job."""
    (gpu,) = job.gpus
    key = job.key_for(gpu)
    if key not in context.cuts:
        cut_all(job, context)
    cut = context.cuts[key]
    if cut is None:
        raise useless(job.filename, gpu)
    return cut


def useless(filename: str, gpu: str) -> ImpossibleError:
    """The error of a wheel that has no code for a GPU."""
    return ImpossibleError(
        f"{filename} holds GPU code, and none of it runs on {gpu}.",
        "Choose another release, or build it with `torchtailor build ... --via source`.",
    )


def pack(job: PackVariant, context: JobContext) -> Wheelhouse:
    """Write a wheelhouse into the context's `out`."""
    entries = packed_entries(job, context)
    check_place(context.out / job.description.variant)
    with disk_errors(context.out, unchanged="An earlier wheelhouse is unchanged."):
        try:
            return write_wheelhouse(job.description, entries, context.out, cache=context.cache.root)
        except DamagedFileError as error:
            raise context.without(error) from error


def packed_entries(job: PackVariant, context: JobContext) -> tuple[WheelhouseEntry, ...]:
    """The wheels of a wheelhouse, found in the cache."""
    return tuple(entry for wheel in job.wheels for entry in _entries(wheel, job.cut_of(wheel), context))


def _entries(wheel: PackedWheel, order: CutForGpus | None, context: JobContext) -> Iterator[WheelhouseEntry]:
    """A wheel as it is, cut, or split in two."""
    sha256 = context.digest(wheel.source, wheel.filename)
    path = context.locate(sha256, wheel.filename)
    stock = StockWheel(path, wheel.filename, sha256, wheel.size, wheel.url)
    cut = _cut(order, context) if order else None
    if cut is None or not cut.changed:
        path = context.find(sha256, wheel.filename)
        yield WheelhouseEntry(
            path, wheel.filename, sha256, WheelStep.UNCHANGED, wheel.required_by, stock, why=wheel.why
        )
        return
    yield WheelhouseEntry(cut.path, cut.path.name, cut.sha256, WheelStep.CUT, wheel.required_by, stock, cut.libraries)
    if pack := cut.pack:
        project = WheelName.parse(Path(wheel.filename)).project
        yield WheelhouseEntry(pack.path, pack.path.name, pack.sha256, WheelStep.PACKS, (f"{project}[{pack.target}]",))
