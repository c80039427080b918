"""A build from source, from the request to the wheelhouse: preflight, attempts, mends, proof, output."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.backends.source.attempt import Attempt, BuildStoppedError, Made, Workshop
from torchtailor.backends.source.buildenv import make_environment, process_environment
from torchtailor.backends.source.ccache import Hits, ccache_environment
from torchtailor.backends.source.configuration import Configuration, configure
from torchtailor.backends.source.cudawheels import CudaPrefix, make_cuda
from torchtailor.backends.source.folders import Folders, key_of
from torchtailor.backends.source.jobs import Jobs
from torchtailor.backends.source.preflight import Inspector, Preflight
from torchtailor.backends.source.process import Log
from torchtailor.backends.source.progress import Silent, Watcher, learned_speed
from torchtailor.backends.source.tables import Tables, load_tables
from torchtailor.backends.source.tree import Origin, Source, Tree, fetch, knows_gpu, version_here
from torchtailor.catalog import Capability, Catalog, Dotted, Method
from torchtailor.disk import existing_parent, locked
from torchtailor.errors import EnvironmentProblem
from torchtailor.host.probe import LiveProbe, Probe
from torchtailor.host.pythons import find_base_python
from torchtailor.ledger.ledger import Ledger, Running
from torchtailor.variants.variant import Variant
from torchtailor.wheelhouse.wheelhouse import Wheelhouse


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    variant: Variant
    source: str | None = None
    profile: str = "full"
    overrides: tuple[str, ...] = ()
    gpus: tuple[Capability, ...] = ()  # more than the variant's own: a fat library
    jobs: int | None = None
    resume: bool = True
    auto_mend: int = 0
    cuda_from_wheels: bool = False
    skip_checks: tuple[str, ...] = ()
    verify: bool = True
    with_dependencies: bool = True
    out: Path = Path("dist")
    work: Path | None = None
    targets: tuple[str, ...] = ("install",)
    ccache: bool = True  # where it is here


@dataclass(frozen=True)
class SourceResult:
    """What a build from source gave."""

    variant: str
    wheel: Path | None
    houses: tuple[Wheelhouse, ...]
    attempts: int
    seconds: float
    log: Path
    peak_memory: int
    hits: Hits | None
    build: Path

    def to_json(self) -> dict[str, object]:
        return {
            "variant": self.variant,
            "wheel": str(self.wheel) if self.wheel else None,
            "wheelhouses": [house.to_json() for house in self.houses],
            "attempts": self.attempts,
            "seconds": round(self.seconds, 1),
            "log": str(self.log),
            "peak_memory": self.peak_memory,
            "ccache": str(self.hits) if self.hits else None,
            "build": str(self.build),
        }


class SourceBuilder:
    """Builds one request; `plan` shows what would be done without doing it."""

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        *,
        probe: Probe | None = None,
        ledger: Ledger | None = None,
        watcher: Watcher | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.catalog = catalog
        self.probe = probe or LiveProbe()
        self.ledger = ledger or Ledger()
        self.watcher = watcher or Silent()
        self.tables = tables or load_tables()
        self.folders = Folders.default(request.work)
        self.source = Source.parse(request.source, request.variant)
        known = version_here(self.source)
        self.request = replace(request, variant=of_tree(request.variant, known)) if known else request
        self.python = find_base_python(request.variant.python)
        self.ccache = self.probe.which("ccache") if request.ccache else None

    def configuration(self, blas: str | None = None) -> Configuration:
        request = self.request
        return configure(
            self.tables,
            request.variant,
            profile=request.profile,
            overrides=request.overrides,
            gpus=request.gpus,
            ccache=bool(self.ccache),
            blas=blas,
        )

    def preflight(self, cuda: CudaPrefix | None = None) -> Preflight:
        """Look at this machine; with `--toolchain wheels` CUDA is not looked for before it was fetched."""
        request = self.request
        seen = Inspector(self.catalog, self.tables, self.probe, request.variant).look(
            self.configuration(),
            python=self.python,
            work=self.folders.work,
            disk_free=shutil.disk_usage(existing_parent(self.folders.work)).free,
            cuda_home=cuda.home if cuda else None,
            git=self.source.origin is Origin.GIT,
        )
        if request.cuda_from_wheels and cuda is None:
            later = ("cuda", "architecture", "cudnn", "nccl")
            return replace(seen, checks=tuple(check for check in seen.checks if check.name not in later))
        return seen

    def build(self) -> SourceResult:
        """Do it; every attempt is in the ledger, and the output in its place only when it is whole and proven."""
        began = time.monotonic()
        request = self.request
        seen = self.preflight()
        seen.demand(request.skip_checks)
        self.folders.make()
        assert self.python is not None
        self.watcher.stage("Making the build environment")
        tools = make_environment(self.folders, self.tables, self.python)
        prefix: CudaPrefix | None = None
        if request.cuda_from_wheels and request.variant.build.cuda:
            self.watcher.stage(f"Fetching CUDA {request.variant.build.cuda} from NVIDIA's wheels")
            cuda_version = request.variant.build.toolkit or request.variant.build.cuda
            cc = seen.compiler.cc if seen.compiler else "cc"
            prefix = make_cuda(self.folders, self.tables, tools, cuda_version, cc=cc)
            seen = self.preflight(prefix)
            seen.demand(request.skip_checks)
        self.watcher.stage("Fetching the source")
        tree = fetch(self.source, self.folders)
        self.request = request = replace(request, variant=of_tree(request.variant, tree.version))
        self.watcher.stage(request.variant.unique_name)
        configuration = self.configuration(seen.blas)
        self._check_tree(tree, configuration)
        folder = self.folders.build(self._name(tree, configuration))
        version = local_version(tree.version, request.variant, request.gpus)

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
                ccache=ccache_environment(self.ccache, self.folders, folder) if self.ccache else None,
            )

        shop = Workshop(
            folder=folder,
            tree=tree,
            tables=self.tables,
            capacity=seen.capacity,
            python=tools.python,
            ninja=tools.ninja,
            environment=environment,
            ccache=bool(self.ccache),
            asked_jobs=request.jobs,
            speed=learned_speed(self.ledger.attempts(limit=200)),
            targets=request.targets,
        )
        hint = "Wait for it, or build with another --work folder."
        with locked(folder / "lock", f"The build of {request.variant.unique_name}", timeout=0, hint=hint):
            if not request.resume:
                shop.start_over()
            made, houses, attempts, log = self._attempts(shop, configuration)
        return SourceResult(
            variant=request.variant.unique_name,
            wheel=made.wheel,
            houses=houses,
            attempts=attempts,
            seconds=time.monotonic() - began,
            log=log,
            peak_memory=made.peak_memory,
            hits=made.hits,
            build=folder,
        )

    def _check_tree(self, tree: Tree, configuration: Configuration) -> None:
        unknown = [gpu for gpu in configuration.gpus if not knows_gpu(tree.path, gpu)]
        if unknown and "architecture" not in self.request.skip_checks:
            raise EnvironmentProblem(
                f"The CMake of this PyTorch ({tree.version}) does not take compute capability {unknown[0]}.",
                "Take a newer source; PyTorch 2.6 takes capabilities of two digits.",
            )

    def _attempts(self, shop: Workshop, configuration: Configuration) -> tuple[Made, tuple[Wheelhouse, ...], int, Path]:
        """Try; fewer jobs after a kill for memory, safe mends as often as allowed, until it is done or beyond that."""
        jobs: Jobs | None = None
        mends = self.request.auto_mend
        count = 0
        name = self.request.variant.unique_name
        while True:
            count += 1
            row = {"torch": shop.tree.version, **configuration.to_json()}
            options = {
                "source": str(self.source),
                "profile": self.request.profile,
                "set": list(self.request.overrides),
                "targets": list(shop.targets),
            }
            attempt: Attempt | None = None
            try:
                with self.ledger.attempt(name, Method.SOURCE, options=options, configuration=row) as running:
                    path = self.folders.logs / f"{running.number:05d}-{name}.log"
                    running.log = str(path)
                    with Log(path) as log:
                        attempt = Attempt(shop, configuration, jobs, running, self.ledger, log, self.watcher)
                        made = attempt.carry_out()
                        return made, self._houses(made, shop.tree, running), count, path
            except BuildStoppedError as stopped:
                assert attempt is not None
                fewer = attempt.jobs.fewer() if stopped.for_memory and attempt.jobs else None
                if fewer:
                    jobs = fewer
                    self.watcher.stage(f"Killed for memory; going on with {jobs.total} jobs")
                    continue
                mended = _mend(stopped, configuration, attempt.jobs) if mends else None
                if mended is None:
                    raise
                mends -= 1
                configuration, jobs, told = mended
                self.watcher.stage(f"{stopped.message} Mended: {told}; trying again")

    def _houses(self, made: Made, tree: Tree, running: Running) -> tuple[Wheelhouse, ...]:
        if made.wheel is None:
            return ()
        running.stage = "proof"
        from torchtailor.backends.source.output import Output

        self.watcher.stage("Proving the wheel and writing the wheelhouse")
        houses = Output(self.catalog, self.request, self.source, tree, self.configuration()).write(made.wheel)
        running.stage = ""
        return houses

    def _name(self, tree: Tree, configuration: Configuration) -> str:
        """One folder for what must be one build: the same source, profile, switches of the user and GPUs.

        All Pythons share it: ninja then compiles libtorch once, and what sees Python's headers for each of them.
        """
        request = self.request
        parts = (tree.identity, request.profile, *sorted(request.overrides), configuration.arch_list)
        return f"{request.variant.any_python}-{key_of(*parts, str(request.cuda_from_wheels))}"


def local_version(version: str, variant: Variant, gpus: tuple[Capability, ...] = ()) -> str:
    """`2.10.0` for sm90-avx512 with CUDA 13.0 -> `2.10.0+cu130.sm90.avx512`; a fat one has no GPU in its name."""
    public, _, local = version.partition("+")
    words = [local, variant.build.label]
    if variant.gpu and not gpus:
        words.append(variant.gpu.sm)
    words += variant.isa.name.split("_")
    return f"{public}+{'.'.join(word for word in words if word)}"


def of_tree(variant: Variant, version: str) -> Variant:
    """The variant with the name of the PyTorch that the tree really is: a nightly or an older source is none of the
    catalog's releases."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    assert found is not None
    own = Dotted(found[0])
    if own == variant.release.version:
        return variant
    return replace(variant, release=replace(variant.release, name=f"source of {version}", version=own))


def _mend(
    stopped: BuildStoppedError, configuration: Configuration, jobs: Jobs | None
) -> tuple[Configuration, Jobs | None, str] | None:
    """The failure's own safe mend, unless it is in place already."""
    auto = stopped.diagnosis.finding.auto if stopped.diagnosis.finding else None
    if auto is None:
        return None
    mended = configuration.mended(auto.switches, auto.environment)
    fewer = jobs.fewer(auto.jobs) if auto.jobs and jobs else None
    if mended.digest == configuration.digest and fewer is None:
        return None
    told = [f"{name}={value}" for name, value in {**auto.switches, **auto.environment}.items()]
    told += [f"{fewer.total} jobs"] if fewer else []
    return mended, fewer or jobs, ", ".join(told)
