"""Runs the jobs of a build from source on a worker: it has a source tree, a build environment and ccache of its own.

Nothing but cache entries travels between machines: a shard compiles its files into ccache's remote storage, and the job
that links finds them there. Where that storage is gone, files are compiled again: slower, never wrong.
"""

from __future__ import annotations

import itertools
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torchtailor.building.farm.records import FarmFile, JobRecord
from torchtailor.building.farm.store import FarmStore
from torchtailor.building.farm.told import ToldProgress
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source.attempt import BuildAttempt, Compiled, Workspace
from torchtailor.building.source.bundling.bundle import Bundle
from torchtailor.building.source.configuration import Configuration
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.jobs import (
    CompileShard,
    ConfigureSource,
    FetchSource,
    LinkSource,
    PackSource,
    SourceSpec,
)
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.output import SourceOutput
from torchtailor.building.source.runner import SourceBuilder, of_tree
from torchtailor.building.source.shards import compiled_files, of_part, shards
from torchtailor.building.source.tables import FileKind
from torchtailor.building.source.tree import SourceOrigin, SourceTree, TorchSource, fetch, source_files
from torchtailor.catalog import SOURCE, Capability, Catalog
from torchtailor.catalog.variants import matrix_of
from torchtailor.core.disk import disk_errors, locked, staging_folder, work_folder
from torchtailor.core.errors import BuildFailedError, EnvironmentProblem
from torchtailor.fetch.cache import Cache

T = TypeVar("T")
_KEPT = "Finished jobs are kept in the store."


@dataclass(frozen=True)
class CompileBench:
    """What builds from source use of a worker."""

    store: FarmStore
    catalog: Catalog
    cache: Cache
    objects: str
    jobs: int | None  # None: as many as fit into memory

    @property
    def work(self) -> Path:
        return work_folder()


def fetch_source(job: FetchSource, bench: CompileBench) -> JobRecord:
    """The tarball as it is, or one of the folder or the commit."""
    source = TorchSource(SourceOrigin(job.origin), job.place, job.ref)
    if source.origin is SourceOrigin.TARBALL:
        path = Path(source.place)
        return JobRecord("source", (bench.store.put(path, path.name),), {"digest": job.digest})
    tree = fetch(source, Folders.default(bench.work))
    with disk_errors(bench.cache.root, unchanged=_KEPT), staging_folder(bench.cache.root) as staging:
        name = f"pytorch-{tree.version}.tar"
        pack_tree(tree.path, staging / name)
        return JobRecord("source", (bench.store.put(staging / name, name),), {"digest": job.digest})


def pack_tree(folder: Path, target: Path) -> None:
    """A tarball of all files that a build is made of."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w") as archive:
        for path in source_files(folder):
            archive.add(path, Path("pytorch") / path.relative_to(folder), recursive=False, filter=plain)


def configure_source(job: ConfigureSource, bench: CompileBench) -> JobRecord:
    """The files that are compiled, with their weights."""
    with _site(job, bench) as site:
        kinds = site.attempt(lambda attempt: attempt.configure())
        files = compiled_files(site.wanted(kinds))
    return JobRecord("configure", (), {"files": [[name, seconds] for name, seconds in files]})


def compile_shard(job: CompileShard, bench: CompileBench) -> JobRecord:
    """The files of one shard, into the shared objects."""
    configured = bench.store.need(job.needs[1])
    files = of_part([(str(name), float(seconds)) for name, seconds in configured.facts["files"]], job.part)
    targets = tuple(name for name, _ in shards(files, job.of)[job.shard])
    if not targets:
        return JobRecord("compile", (), {"files": 0, "hits": 0, "misses": 0})
    with _site(job, bench) as site:
        compiled = site.attempt(lambda attempt: attempt.run(), targets=targets)
    return JobRecord("compile", (), {"files": len(targets), **_hits(compiled)})


def link_source(job: LinkSource, bench: CompileBench) -> JobRecord:
    """The wheel; nothing where only some targets are built."""
    with _site(job, bench) as site:
        compiled, bundle = site.attempt(site.link)
        files: tuple[FarmFile, ...] = ()
        wheel = bundle.wheel if bundle else compiled.wheel
        if wheel is not None:
            files = (bench.store.put(wheel, wheel.name),)
        facts = {
            "version": site.space.tree.version,
            "identity": site.space.tree.identity,
            "configuration": site.configuration.columns,
            "bundle": bundle.manifest if bundle else None,
            "peak_memory": compiled.peak_memory,
            **_hits(compiled),
        }
    return JobRecord("link", files, facts)


def pack_source(job: PackSource, bench: CompileBench, out: Path) -> Path:
    """The folder of a variant's wheelhouse below `out`; it is proven."""
    key = job.needs[1]
    linked = bench.store.need(key)
    if not linked.files:
        raise BuildFailedError("Only some targets were built, which make no wheel.", "Omit --target.")
    (wheel,) = linked.files
    with disk_errors(out, unchanged=_KEPT), staging_folder(bench.cache.root) as staging:
        bench.store.get(key, wheel, staging / wheel.path)
        request = _request(job.spec, bench, source="", out=out)
        version = str(linked.facts["version"])
        gpus = (Capability.parse(job.gpu),) if job.gpu and job.spec.gpus else ()
        output = SourceOutput(
            bench.catalog,
            replace(request, variant=of_tree(request.variant, version), gpus=gpus),
            TorchSource(SourceOrigin(job.spec.origin), job.spec.place, job.spec.ref),
            SourceTree(Path(), version, str(linked.facts["identity"])),
            linked.facts["configuration"],
            linked.facts["bundle"],
        )
        (house,) = output.write(staging / wheel.path)
        return house.path


def _hits(compiled: Compiled) -> dict[str, int]:
    found = compiled.hits
    return {"hits": found.hits if found else 0, "misses": found.misses if found else 0}


def _request(spec: SourceSpec, bench: CompileBench, *, source: str, out: Path) -> SourceRequest:
    variant = matrix_of(bench.catalog).resolve(spec.variant, via=SOURCE).variant
    options = SourceOptions(
        source=source or None,
        profile=spec.profile,
        overrides=spec.overrides,
        jobs=bench.jobs,
        cuda_from_wheels=spec.cuda_from_wheels,
        skip_checks=spec.skip_checks,
        bundle=spec.bundle,
        verify=spec.verify,
        with_dependencies=spec.with_dependencies,
        targets=spec.targets,
        work=bench.work,
        objects=bench.objects,
    )
    return SourceRequest(variant, out, tuple(map(Capability.parse, spec.gpus)), options)


@dataclass
class _Site:
    """A place on this machine where one tree is built; no other process builds there."""

    builder: SourceBuilder
    space: Workspace
    configuration: Configuration

    def wanted(self, kinds: dict[str, FileKind]) -> dict[str, FileKind]:
        """The files that the targets need."""
        if self.space.whole:
            return kinds
        line = (str(self.space.ninja), "-C", str(self.space.build), "-t", "inputs", *self.space.targets)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailedError(
                f"ninja does not know the targets {', '.join(self.space.targets)}.", "`ninja -t targets` lists them."
            )
        needed = {*done.stdout.split("\n"), *self.space.targets}  # a target may be an object itself
        return {name: kind for name, kind in kinds.items() if name in needed}

    def link(self, attempt: BuildAttempt) -> tuple[Compiled, Bundle | None]:
        """Build the whole, and bundle the libraries of this machine: they are what it was linked with."""
        compiled = attempt.run()
        return compiled, self.builder.bundle(compiled, self.space, attempt.running, attempt.log)

    def attempt(self, work: Callable[[BuildAttempt], T], *, targets: tuple[str, ...] = ()) -> T:
        space = replace(self.space, targets=targets) if targets else self.space
        return self.builder.attempts(space, self.configuration, work)


@contextmanager
def _site(job: ConfigureSource | CompileShard | LinkSource, bench: CompileBench) -> Iterator[_Site]:
    spec = job.spec
    tarball = _tarball(spec.tree, bench)
    request = _request(spec, bench, source=str(tarball), out=bench.work / "none")
    builder = SourceBuilder(bench.catalog, request, ledger=Ledger(bench.work / "farm.sqlite"))
    builder.source = replace(builder.source, commit=spec.commit)
    builder.progress = ToldProgress(job.gives[0])
    builder.folders = replace(builder.folders, logs=builder.folders.logs / "farm")
    builder.folders.make()
    if builder.ccache is None:
        raise EnvironmentProblem(
            "ccache is not installed, and shards share their objects through it.", "Install ccache on every worker."
        )
    with _own_builds(bench.work) as builds:
        builder.folders = replace(builder.folders, builds=builds)
        space, configuration = builder.prepare()
        space.folder.mkdir(parents=True, exist_ok=True)
        yield _Site(builder, space, configuration)


def _tarball(key: str, bench: CompileBench) -> Path:
    (file,) = bench.store.need(key).files
    known = bench.cache.find(file.sha256, file.path)
    if known is not None:
        return known
    with disk_errors(bench.cache.root, unchanged=_KEPT), bench.cache.staging() as staging:
        bench.store.get(key, file, staging / file.path)
        return bench.cache.adopt(staging / file.path, file.sha256, file.path)


@contextmanager
def _own_builds(work: Path) -> Iterator[Path]:
    """A folder for builds that no other process of this machine uses; the same as before, where that is free."""
    for number in itertools.count():
        lock = locked(work / "slots" / f"{number}.lock", "The folder", timeout=0)
        try:
            lock.__enter__()
        except EnvironmentProblem:
            continue
        try:
            yield work / "slots" / str(number)
        finally:
            lock.__exit__(None, None, None)
        return
