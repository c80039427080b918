"""The graph of a build from source: what is compiled once for several variants, in shards that any machine may take.

Host objects depend on the instruction set, device objects on the GPU. So all instruction sets of one platform are
configured for the same GPUs: the device files are compiled once, with the first of them, and found by the others. The
host files of an instruction set are compiled once for all toolkits, but for those that include CUDA's headers. Each
instruction set of each toolkit is linked once, and each variant is cut out of that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchtailor.building.farm.fingerprint import describe_worker
from torchtailor.building.graph.graph import GraphJob, JobGraph, JobWeight
from torchtailor.building.planned_jobs import FarmVariant, JobPlace, PlannedJobs
from torchtailor.building.source.backend import SourcePlan
from torchtailor.building.source.ccache import remote_storage
from torchtailor.building.source.jobs import (
    CompilePart,
    CompileShard,
    ConfigureSource,
    FetchSource,
    LinkSource,
    PackSource,
    SourceSpec,
)
from torchtailor.building.source.objects import own_objects
from torchtailor.building.source.options import SourceOptions
from torchtailor.building.source.plan import VariantGroup
from torchtailor.building.source.shards import shards
from torchtailor.building.source.tables import CostRow
from torchtailor.building.source.tree import SourceOrigin, TorchSource, content_digest, folder_commit, remote_commit
from torchtailor.catalog import SOURCE, Capability
from torchtailor.core.disk import hash_file

_SHARD_SECONDS = 900.0  # of work: a lost worker loses less, and the end is even
_WARMING = 60.0  # seconds to unpack a tree, to configure it and to generate code
_UNPACKED = 30.0
_FOUND = 40.0  # seconds until the job that links has taken all objects from the cache
_MEMORY = 2_400_000_000
_DEVICE_MEMORY = 6_000_000_000
_LINK_MEMORY = 4_000_000_000


@dataclass(frozen=True)
class SourceCosts:
    """What files and steps cost, in seconds of one core."""

    host: Sequence[float]  # a number for each file that builds without CUDA have too
    python: Sequence[float]  # of these, those that include Python's headers
    toolkit: Sequence[float]  # host files that only builds with CUDA have
    device: Sequence[float]  # for one GPU
    link: float
    cut: float

    @classmethod
    def of(cls, row: CostRow) -> SourceCosts:
        """By the totals of the tables, all files alike."""
        return cls(
            host=[row.host_core_hours * 3600 / row.host_files] * row.host_files,
            python=[row.python_core_hours * 36] * 100,
            toolkit=[row.toolkit_core_hours * 3600 / row.toolkit_files] * row.toolkit_files,
            device=[row.device_core_hours * 3600 / row.device_files] * row.device_files,
            link=row.link_core_hours * 3600,
            cut=row.cut_core_hours * 3600,
        )

    def of_part(self, part: CompilePart, *, cuda: bool) -> list[float]:
        """The seconds of the files of a part, in a build with CUDA or without."""
        toolkit = self.toolkit if cuda else ()
        match part:
            case CompilePart.HOST:
                return [*self.host, *toolkit]
            case CompilePart.PYTHON:
                return [*self.python]
            case CompilePart.TOOLKIT:
                return [*self.python, *toolkit]
            case CompilePart.DEVICE:
                return [*self.device]


def source_jobs_on(plan: SourcePlan, place: JobPlace) -> PlannedJobs:
    """The jobs of a plan, whose objects are shared through ccache's remote storage."""
    shared = place.objects or own_objects(place.store)
    remote_storage(shared)
    first, described = plan.builders[0], describe_worker()
    made = source_graph(
        plan.matrix.groups,
        source_job(first.source),
        first.options,
        SourceCosts.of(first.tables.cost),
        toolchain=f"{described['compiler']}, glibc {described['glibc']}",
        objects=shared,
        rows=place.rows,
        wanted_shards=place.shards,
    )
    options = {"source": str(first.source), "profile": first.options.profile, "set": list(first.options.overrides)}
    variants = tuple(FarmVariant(name, SOURCE, key, options, {}) for name, key in made.results.items())
    return PlannedJobs(plan, made.graph, variants, shared, compiles=True, processes=first.options.jobs)


@dataclass(frozen=True)
class PlannedSource:
    """A graph, and which job gives each variant its wheelhouse."""

    graph: JobGraph
    results: Mapping[str, str] = field(default_factory=dict)  # key, by variant


def source_job(source: TorchSource) -> FetchSource:
    """The job that puts a source into the store; its key is of the content, or of the commit."""
    commit = ""
    match source.origin:
        case SourceOrigin.FOLDER:
            digest, commit = content_digest(Path(source.place)), folder_commit(Path(source.place))
        case SourceOrigin.TARBALL:
            digest = hash_file(Path(source.place))
        case SourceOrigin.GIT:
            digest = remote_commit(source)
            commit = "" if source.is_release else digest
    return FetchSource(source.origin.value, source.place, source.ref, digest, commit)


def source_graph(
    groups: Sequence[VariantGroup],
    tree: FetchSource,
    options: SourceOptions,
    costs: SourceCosts,
    *,
    toolchain: str,
    objects: str,
    rows: str = "",
    wanted_shards: int | None = None,
) -> PlannedSource:
    """The jobs of groups of variants; `rows` is a digest of the user's rows of the catalog, and `wanted_shards` how
    many shards each part has, else by weight."""
    where = hashlib.sha256(objects.encode()).hexdigest()
    planner = _Planner(tree, options, costs, toolchain, where, rows, wanted_shards)
    jobs = [*planner.jobs(groups)]
    return PlannedSource(JobGraph(jobs), planner.results)


@dataclass
class _Planner:
    tree: FetchSource
    options: SourceOptions
    costs: SourceCosts
    toolchain: str
    objects: str
    rows: str
    wanted: int | None
    results: dict[str, str] = field(default_factory=dict, init=False)

    def jobs(self, groups: Sequence[VariantGroup]) -> Iterator[GraphJob]:
        here = self.tree.origin != SourceOrigin.GIT.value
        names = tuple(variant for group in groups for variant, _ in _variants(group))
        yield GraphJob(self.tree, "fetch the source", JobWeight(_UNPACKED), names, here=here)
        platforms: dict[tuple[str, str, str], list[VariantGroup]] = {}
        for group in groups:
            variant = group.variant
            platforms.setdefault((variant.release.name, variant.build.label, variant.arch), []).append(group)
        leads: dict[tuple[str, str], tuple[str, ...]] = {}  # the host shards, by release and instruction set
        # those without GPUs first: all their files but Python's are found by the others
        for members in sorted(platforms.values(), key=lambda groups: any(map(_gpus, groups))):
            yield from self._platform(members, leads)

    def _platform(
        self, groups: Sequence[VariantGroup], leads: dict[tuple[str, str], tuple[str, ...]]
    ) -> Iterator[GraphJob]:
        """All instruction sets and Pythons of one release, toolkit and architecture."""
        gpus = tuple(str(gpu) for gpu in sorted({gpu for group in groups for gpu in _gpus(group)}))
        names = tuple(variant for group in groups for variant, _ in _variants(group))
        arch = groups[0].variant.arch
        device: list[str] = []
        own_leads: dict[str, tuple[str, ...]] = {}  # of this toolkit, by instruction set
        for number, group in enumerate(groups):
            spec = self._spec(group, gpus if len(gpus) > 1 else ())
            mine = tuple(variant for variant, _ in _variants(group))
            label = _label(group)
            configure = ConfigureSource(spec)
            (configured,) = configure.gives
            weight = JobWeight(_WARMING, _MEMORY)
            yield GraphJob(configure, f"configure {label}", weight, mine, machine=arch, warm=configured)
            if number == 0 and gpus:
                shared = f"{label}, {len(gpus)} GPUs"
                for job in self._shards(spec, CompilePart.DEVICE, shared, names, configured, arch, gpus=len(gpus)):
                    device += job.gives
                    yield job
            isa, release = group.variant.isa.name, group.variant.release.name
            part, lead = CompilePart.HOST, leads.get((release, isa), ())
            if isa in own_leads:
                part, lead = CompilePart.PYTHON, own_leads[isa]
            elif lead:
                part = CompilePart.TOOLKIT
            own: list[str] = []
            for job in self._shards(spec, part, label, mine, configured, arch, gpus=len(gpus), after=lead):
                own += job.gives
                yield job
            own_leads.setdefault(isa, (*lead, *own))
            leads.setdefault((release, isa), (*lead, *own))
            link = LinkSource(spec, tuple(sorted({*device, *own, *lead})))
            weight = JobWeight(self.costs.link + _FOUND, _LINK_MEMORY)
            yield GraphJob(link, f"link {label}", weight, mine, machine=arch, warm=configured, warming=_WARMING)
            if self.options.targets:
                self.results |= dict.fromkeys(mine, "")
                continue
            for variant, gpu in _variants(group):
                pack = PackSource(spec, gpu)
                (self.results[variant],) = pack.gives
                weight = JobWeight(self.costs.cut, 1_000_000_000)
                yield GraphJob(pack, f"pack {variant}", weight, (variant,), machine=arch)

    def _shards(
        self,
        spec: SourceSpec,
        part: CompilePart,
        label: str,
        variants: tuple[str, ...],
        configured: str,
        arch: str,
        *,
        gpus: int,
        after: tuple[str, ...] = (),
    ) -> Iterator[GraphJob]:
        device = part is CompilePart.DEVICE
        files = self.costs.of_part(part, cuda=gpus > 0)
        weights = [(str(number), seconds * (gpus if device else 1)) for number, seconds in enumerate(files)]
        total = sum(seconds for _, seconds in weights)
        count = self.wanted or max(1, math.ceil(total / _SHARD_SECONDS))
        for number, shard in enumerate(shards(weights, count)):
            job = CompileShard(spec, part, number, count, self.objects, after)
            weight = JobWeight(sum(seconds for _, seconds in shard), _DEVICE_MEMORY if device else _MEMORY)
            name = f"compile {part.value} {number + 1}/{count} of {label}"
            yield GraphJob(job, name, weight, variants, machine=arch, warm=configured, warming=_WARMING)

    def _spec(self, group: VariantGroup, gpus: tuple[str, ...]) -> SourceSpec:
        options, tree = self.options, self.tree
        git = tree.origin == SourceOrigin.GIT.value
        return SourceSpec(
            variant=group.variant.unique_name,
            gpus=gpus,
            tree=tree.key,
            origin=tree.origin,
            place=tree.place if git else tree.place.rpartition("/")[2],
            ref=tree.ref,
            toolchain=self.toolchain,
            commit=tree.commit,
            rows=self.rows,
            profile=options.profile,
            overrides=options.overrides,
            cuda_from_wheels=options.cuda_from_wheels,
            skip_checks=options.skip_checks,
            bundle=options.bundle,
            verify=options.verify,
            with_dependencies=options.with_dependencies,
            targets=options.targets,
        )


def _gpus(group: VariantGroup) -> tuple[Capability, ...]:
    own = group.variant.gpu
    return group.gpus or ((own.capability,) if own else ())


def _variants(group: VariantGroup) -> list[tuple[str, str | None]]:
    """The variants of a group, each with its GPU."""
    variant = group.variant
    if variant.gpu is None:
        return [(variant.unique_name, None)]
    if not group.gpus:
        return [(variant.unique_name, str(variant.gpu.capability))]
    word = variant.gpu.sm
    return [(variant.unique_name.replace(f"-{word}-", f"-sm{gpu.major}{gpu.minor}-"), str(gpu)) for gpu in group.gpus]


def _label(group: VariantGroup) -> str:
    variant = group.variant
    return f"{variant.release.version} {variant.build.label} {variant.isa.name} Python {variant.python}"
