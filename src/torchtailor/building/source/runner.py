"""A build from source, from the request to the wheelhouse: preflight, attempts, fixes, proof, output."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from torchtailor.advise.host.probe import LiveProbe, Probe
from torchtailor.building.ledger.ledger import Ledger, Running
from torchtailor.building.process import Log
from torchtailor.building.source.attempt import BuildAttempt, BuildStoppedError, Compiled, Workspace
from torchtailor.building.source.buildenv import make_environment, make_tools, process_environment
from torchtailor.building.source.bundling.bundle import Bundle, BundleDocument, Bundler
from torchtailor.building.source.bundling.tables import load_bundle_tables
from torchtailor.building.source.ccache import Hits, ccache_environment, remote_storage
from torchtailor.building.source.configuration import Configuration, SettingGroup, configure, misspelt
from torchtailor.building.source.cudawheels import CudaPrefix, make_cuda
from torchtailor.building.source.estimate import COMPILER_KEY, learned_speed
from torchtailor.building.source.folders import Folders, key_of
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.output import SourceOutput
from torchtailor.building.source.parallel import CompileJobs
from torchtailor.building.source.preflight import Inspector, Preflight, PreflightCheck, check_names
from torchtailor.building.source.tables import BlasLibrary, Tables, load_tables
from torchtailor.building.source.toolchain import asked_compiler
from torchtailor.building.source.tree import SourceOrigin, SourceTree, TorchSource, fetch, known_version, knows_gpu
from torchtailor.catalog import SOURCE, Capability, Catalog, Dotted
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.disk import locked
from torchtailor.core.documents import Bytes, Seconds, document
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.format import counted
from torchtailor.core.progress import Progress
from torchtailor.core.pythons import find_base_python
from torchtailor.core.room import free_at
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, WheelhouseDocument

T = TypeVar("T")


@dataclass(frozen=True)
class SourceBuild:
    """What one build from source gave."""

    variant: str
    wheel: Path | None  # None where only some targets were built
    wheelhouses: tuple[Wheelhouse, ...]
    attempts: int
    seconds: float
    log: Path
    peak_memory: int
    hits: Hits | None
    build: Path
    bundle: Bundle | None  # None without --bundle
    warnings: tuple[str, ...] = ()

    @property
    def ccache(self) -> str | None:
        return str(self.hits) if self.hits else None


class SourceBuildRow(Struct):
    """What one build from source gave."""

    variant: str
    wheel: Annotated[Path | None, Meta(description="null where only some targets were built")]
    wheelhouses: tuple[WheelhouseDocument, ...]
    attempts: int
    seconds: Seconds
    log: Path
    peak_memory: Bytes
    ccache: Annotated[str | None, Meta(description="hits and misses")]
    build: Annotated[Path, Meta(description="the folder that it was built in")]
    bundle: Annotated[BundleDocument | None, Meta(description="null with --no-bundle")]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Finished:
    """What the last of the attempts gave."""

    compiled: Compiled
    bundle: Bundle | None
    wheelhouses: tuple[Wheelhouse, ...]
    warnings: tuple[str, ...]
    attempts: int
    log: Path


@dataclass(frozen=True)
class PlannedSourceBuild:
    """What one build would do on this machine."""

    variant: Variant
    source: TorchSource
    work: Path
    configuration: Configuration
    preflight: Preflight
    options: SourceOptions
    warnings: tuple[str, ...] = ()

    @property
    def blocking(self) -> tuple[PreflightCheck, ...]:
        """The checks because of which it would not start."""
        return self.preflight.blocking(self.options.skip_checks)

    @property
    def document(self) -> PlannedSourceDocument:
        return document(
            PlannedSourceDocument,
            self,
            variant=self.variant.unique_name,
            source=str(self.source),
            configuration=self.configuration.columns,
            reasons=self.configuration.reasons,
            preflight=self.preflight.rows,
            blocking=[check.name for check in self.blocking],
            bundle=self.options.bundle,
        )


class PlannedSourceDocument(Struct):
    """What one build would do on this machine."""

    variant: str
    source: str
    work: Path
    configuration: Annotated[dict[str, str], Meta(description="every switch")]
    reasons: tuple[SettingGroup, ...]
    preflight: tuple[PreflightCheck, ...]
    blocking: Annotated[tuple[str, ...], Meta(description="the checks because of which it would not start")]
    bundle: bool
    warnings: tuple[str, ...]


class SourceBuilder:
    """Builds one request; `plan` checks the machine and builds nothing."""

    def __init__(
        self,
        catalog: Catalog,
        request: SourceRequest,
        *,
        probe: Probe | None = None,
        ledger: Ledger | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.catalog = catalog
        self.probe = probe or LiveProbe()
        self.ledger = ledger or Ledger()
        self.progress: Progress = Progress()
        self.tables = tables or load_tables()
        self.options = request.options
        check_names(self.options.skip_checks)
        if self.options.objects:
            remote_storage(self.options.objects)
        self.folders = Folders.default(self.options.work)
        self.source = TorchSource.parse(self.options.source, request.variant)
        version = known_version(self.source)
        self.request = replace(request, variant=of_tree(request.variant, version)) if version else request
        self.python = find_base_python(request.variant.python)
        self.bundler: Bundler | None = None  # when its tools are installed
        self.ccache = self.probe.which("ccache") if self.options.ccache else None

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What comes out: one variant, or one for each GPU of the library."""
        one = self.request.variant
        return tuple(replace(one, gpu=self.catalog.gpus[gpu]) for gpu in self.request.gpus) or (one,)

    def plan(self) -> PlannedSourceBuild:
        seen = self.preflight()
        configuration = self.configuration(seen.blas)
        return PlannedSourceBuild(
            self.request.variant, self.source, self.folders.work, configuration, seen, self.options, self.warnings
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Options that may not do what the user expects."""
        found = [
            f"{name} is not a switch that torchtailor knows. Did you mean {near}?"
            for name, near in misspelt(self.tables, self.options.overrides).items()
        ]
        if self.request.variant.gpu is None:
            given = {"--all-gpus": self.options.all_gpus, "--toolchain wheels": self.options.cuda_from_wheels}
            name = self.request.variant.short_name
            found += [f"{option} has no effect: {name} has no GPU code." for option, used in given.items() if used]
        if self.options.objects and not self.ccache:
            found.append("--objects has no effect: ccache is switched off or not installed.")
        return tuple(found)

    def configuration(self, blas: BlasLibrary | None = None) -> Configuration:
        return configure(
            self.tables,
            self.request.variant,
            profile=self.options.profile,
            overrides=self.options.overrides,
            gpus=self.request.gpus,
            ccache=bool(self.ccache),
            blas=blas,
        )

    def preflight(self, cuda: CudaPrefix | None = None) -> Preflight:
        """Check this machine; CUDA of `--toolchain wheels` is checked only when it was fetched."""
        seen = Inspector(self.catalog, self.tables, self.probe, self.request.variant).check(
            self.configuration(),
            python=self.python,
            work=self.folders.work,
            disk_free=free_at(self.folders.work),
            cuda_home=cuda.home if cuda else None,
            git=self.source.origin is SourceOrigin.GIT,
            bundle=self.options.bundle and not self.options.targets,
        )
        if self.options.verify and not self.options.targets:
            seen = replace(seen, checks=(*seen.checks, Inspector.verifying()))
        if self.options.cuda_from_wheels and cuda is None:
            later = ("cuda", "architecture", "cudnn", "nccl")
            return replace(seen, checks=tuple(check for check in seen.checks if check.name not in later))
        return seen

    def build(self, progress: Progress | None = None) -> SourceBuild:
        """Build it; every attempt is in the ledger, and the output in its place only when it is whole and proven."""
        began = time.monotonic()
        self.progress = progress or self.progress
        space, configuration = self.prepare()
        request, folder = self.request, space.folder
        hint = "Wait for it, or build with another --work folder."
        with locked(folder / "lock", f"The build of {request.variant.unique_name}", timeout=0, hint=hint):
            if not self.options.resume:
                space.start_over()
            done = self.attempts(space, configuration, self._finish)
        return SourceBuild(
            variant=request.variant.unique_name,
            wheel=done.bundle.wheel if done.bundle else done.compiled.wheel,
            wheelhouses=done.wheelhouses,
            attempts=done.attempts,
            seconds=round(time.monotonic() - began, 1),
            log=done.log,
            peak_memory=done.compiled.peak_memory,
            hits=done.compiled.hits,
            build=folder,
            bundle=done.bundle,
            warnings=done.warnings,
        )

    def prepare(self) -> tuple[Workspace, Configuration]:
        """Check the machine, and fetch tools and source: all that a build needs before anything is compiled."""
        request = self.request
        seen = self.preflight()
        seen.require(self.options.skip_checks)
        if seen.compiler is None and (asked := asked_compiler(self.probe)):  # with its check skipped
            named = " and ".join(asked)
            raise EnvironmentProblem(
                f"{named} of the environment cannot be used, and no other compiler is taken instead.",
                f"Set {named} to a compiler, or unset it.",
            )
        self.folders.make()
        if self.python is None:  # with its check skipped
            raise EnvironmentProblem(
                f"Python {request.variant.python} is not installed, and a build needs it.",
                "Install it, or choose another with --python.",
            )
        self.progress.stage("Creating the build environment")
        tools = make_environment(self.folders, self.tables, self.python)
        if self.options.bundle and not self.options.targets:
            tables = load_bundle_tables()
            self.bundler = Bundler(make_tools(self.folders, tables.tools, Path(sys.executable)), tables)
        prefix: CudaPrefix | None = None
        if self.options.cuda_from_wheels and request.variant.build.cuda:
            self.progress.stage(f"Fetching CUDA {request.variant.build.cuda} from NVIDIA's wheels")
            cuda_version = request.variant.build.toolkit or request.variant.build.cuda
            cc = seen.compiler.cc if seen.compiler else "cc"
            prefix = make_cuda(self.folders, self.tables, tools, cuda_version, cc=cc)
            seen = self.preflight(prefix)
            seen.require(self.options.skip_checks)
        self.progress.stage("Fetching the source")
        tree = fetch(self.source, self.folders)
        self.request = request = replace(request, variant=of_tree(request.variant, tree.version))
        self.progress.stage(request.variant.unique_name)
        configuration = self.configuration(seen.blas)
        self._check_tree(tree, configuration)
        folder = self.folders.build(self._name(tree, configuration))
        version = local_version(tree.version, request.variant, request.gpus)

        compiler = seen.compiler.name if seen.compiler else ""

        def environment(chosen: Configuration) -> Mapping[str, str]:
            return process_environment(
                self.tables,
                tools,
                chosen,
                version=version,
                include=folder / "torchtailor.cmake",
                compiler=seen.compiler,
                cuda=seen.cuda,
                cuda_paths=prefix.paths if prefix else None,
                ccache=self._shared_objects(folder),
            )

        return Workspace(
            folder=folder,
            tree=tree,
            tables=self.tables,
            capacity=seen.capacity,
            python=tools.python,
            ninja=tools.ninja,
            environment=environment,
            ccache=bool(self.ccache),
            asked_jobs=self.options.jobs,
            compiler=compiler,
            speed=learned_speed(self.ledger.attempts(limit=200), compiler),
            targets=self.options.targets or ("install",),
        ), configuration

    def _shared_objects(self, folder: Path) -> dict[str, str] | None:
        if not self.ccache:
            return None
        return ccache_environment(self.ccache, self.folders, folder, remote=self.options.objects)

    def _check_tree(self, tree: SourceTree, configuration: Configuration) -> None:
        unknown = [gpu for gpu in configuration.gpus if not knows_gpu(tree.path, gpu)]
        if unknown and "architecture" not in self.options.skip_checks:
            raise EnvironmentProblem(
                f"The CMake of this PyTorch ({tree.version}) does not accept compute capability {unknown[0]}.",
                "Use a newer source; PyTorch 2.6 is the first that accepts 10.0 and above.",
            )

    def attempts(self, space: Workspace, configuration: Configuration, work: Callable[[BuildAttempt], T]) -> T:
        """Work on one attempt, and on the next with fewer jobs where memory ran out, or with a known safe fix as often
        as allowed; each is in the ledger."""
        jobs: CompileJobs | None = None
        fixes = self.options.auto_fix
        name = self.request.variant.unique_name
        options = {
            "source": str(self.source),
            "profile": self.options.profile,
            "set": list(self.options.overrides),
            "targets": list(space.targets),
        }
        for number in itertools.count(1):
            row = {"torch": space.tree.version, COMPILER_KEY: space.compiler, **configuration.columns}
            attempt: BuildAttempt | None = None
            try:
                with self.ledger.attempt(name, SOURCE, options=options, configuration=row) as running:
                    path = self.folders.logs / f"{running.number:05d}-{name}.log"
                    running.log = str(path)
                    with Log(path) as log:
                        attempt = BuildAttempt(
                            space, configuration, jobs, running, self.ledger, log, self.progress, number
                        )
                        return work(attempt)
            except BuildStoppedError as stopped:
                assert attempt is not None
                fewer = attempt.jobs.fewer() if stopped.for_memory and attempt.jobs else None
                if fewer:
                    jobs = fewer
                    self.progress.stage(f"Memory ran out; continuing with {counted(jobs.total, 'job')}")
                    continue
                fixed = _apply_fix(stopped, configuration, attempt.jobs) if fixes else None
                if fixed is None:
                    raise
                fixes -= 1
                configuration, jobs, changes = fixed
                self.progress.stage(f"{stopped.message} Fixed with {changes}; building again")
        raise AssertionError  # an attempt ends with a result or an error

    def _finish(self, attempt: BuildAttempt) -> _Finished:
        """Compile all, bundle and prove it."""
        space = attempt.workspace
        compiled = attempt.run()
        bundle = self.bundle(compiled, space, attempt.running, attempt.log)
        wheelhouses, warnings = self._wheelhouses(compiled, bundle, space.tree, attempt.configuration, attempt.running)
        return _Finished(compiled, bundle, wheelhouses, warnings, attempt.number, attempt.log.path)

    def bundle(self, compiled: Compiled, space: Workspace, running: Running, log: Log) -> Bundle | None:
        """Put the libraries that it needs into the wheel; here, where they are what it was linked with."""
        if self.bundler is None or compiled.wheel is None:
            return None
        running.stage = "bundle"
        self.progress.stage("Bundling the libraries that are not on every Linux")
        shutil.rmtree(space.bundled, ignore_errors=True)
        bundle = self.bundler.bundle(compiled.wheel, space.bundled, log.say)
        running.stage = ""
        return bundle

    def _wheelhouses(
        self,
        compiled: Compiled,
        bundle: Bundle | None,
        tree: SourceTree,
        configuration: Configuration,
        running: Running,
    ) -> tuple[tuple[Wheelhouse, ...], tuple[str, ...]]:
        """Wheelhouses of the configuration that was built, with the BLAS and the fixes it has; and warnings."""
        if compiled.wheel is None:
            return (), ()
        running.stage = "proof"
        self.progress.stage("Verifying the wheel and writing the wheelhouse")
        bundled = bundle.manifest if bundle else None
        output = SourceOutput(self.catalog, self.request, self.source, tree, configuration.columns, bundled)
        wheelhouses = output.write(bundle.wheel if bundle else compiled.wheel)
        running.stage = ""
        return wheelhouses, tuple(output.warnings)

    def _name(self, tree: SourceTree, configuration: Configuration) -> str:
        """One folder per source, profile, switches of the user and GPUs.

        All Pythons share it: ninja compiles libtorch once, and files that include Python's headers for each of them.
        """
        options = self.options
        parts = (tree.identity, options.profile, *sorted(options.overrides), configuration.arch_list)
        return f"{self.request.variant.any_python}-{key_of(*parts, str(options.cuda_from_wheels))}"


def local_version(version: str, variant: Variant, gpus: tuple[Capability, ...] = ()) -> str:
    """`2.10.0` for sm90-avx512 with CUDA 13.0 -> `2.10.0+cu130.sm90.avx512`; no GPU where it is for several."""
    public, _, local = version.partition("+")
    words = [local, variant.build.label]
    if variant.gpu and not gpus:
        words.append(variant.gpu.sm)
    words += variant.isa.name.split("_")
    return f"{public}+{'.'.join(word for word in words if word)}"


def of_tree(variant: Variant, version: str) -> Variant:
    """The variant with the version of the source tree, which may be none of the catalog's releases: a nightly."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    assert found is not None
    own = Dotted(found[0])
    if own == variant.release.version:
        return variant
    release = msgspec.structs.replace(variant.release, name=f"source of {version}", version=own)
    return replace(variant, release=release)


def _apply_fix(
    stopped: BuildStoppedError, configuration: Configuration, jobs: CompileJobs | None
) -> tuple[Configuration, CompileJobs | None, str] | None:
    """The known safe fix of the failure, unless it is applied already."""
    auto = stopped.diagnosis.finding.auto if stopped.diagnosis.finding else None
    if auto is None:
        return None
    fixed = configuration.fixed(auto.switches, auto.environment)
    fewer = jobs.fewer(auto.jobs) if auto.jobs and jobs else None
    if fixed.digest == configuration.digest and fewer is None:
        return None
    changes = [f"{name}={value}" for name, value in {**auto.switches, **auto.environment}.items()]
    changes += [counted(fewer.total, "job")] if fewer else []
    return fixed, fewer or jobs, ", ".join(changes)
