"""The jobs of a workflow: which variants are built on which runner, where they are proven, and where they go."""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from torchtailor.building.choose import choose
from torchtailor.building.farm.where import HERE, Where, parse_where
from torchtailor.building.nix.derivations import binary_cache
from torchtailor.building.source.ccache import remote_storage
from torchtailor.building.source.objects import own_objects
from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog
from torchtailor.catalog.load import USER_FILE
from torchtailor.catalog.methods import WorkflowNeeds
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants import Variant
from torchtailor.catalog.variants.matrix import ParsedName
from torchtailor.catalog.variants.select import is_glob, unmatched
from torchtailor.core import origin, version
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.store import check_store
from torchtailor.core.urls import redact
from torchtailor.core.version import __version__
from torchtailor.nix.write import recipe_releases
from torchtailor.publish.ci.cron import cron_problem
from torchtailor.publish.ci.tables import OidcRow, SchemeRow, SystemRow, ci_tables

_OLDEST_PYTHON = "3.11"  # that torchtailor runs on
# A login that is a secret: any of http, and of other schemes one with a password; git@ of ssh is none.
_PASSWORD = re.compile(r"https?://[^/?#\s]+@|://[^/?#\s@:]*:[^/?#\s]*@")
_BRANCH = re.compile(r"[\w./+@#-]*")
_PACKAGES = "Write torchtailor==1.0, a folder of the repository (./tools/torchtailor), or git+https://...@TAG."
_LABEL = re.compile(r"[\w.:$/@{} -]+")
CiRow = dict[str, str | tuple[str, ...]]
CiMatrices = dict[str, dict[str, list[CiRow]]]


class CiSystem(StrEnum):
    """What runs the workflow."""

    GITHUB = "github"
    GITLAB = "gitlab"


class CiDivision(StrEnum):
    """What one job builds."""

    VARIANT = "variant"
    GPU = "gpu"
    ARCHITECTURE = "architecture"
    ALL = "all"


class CiLogin(StrEnum):
    """How jobs log in to stores and indexes."""

    OIDC = "oidc"
    KEYS = "keys"


class CiLevel(StrEnum):
    """How far a job that builds proves what it has built."""

    STATIC = "static"
    IMPORT = "import"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class CiOptions:
    """What the workflow is to do."""

    selectors: tuple[str, ...]
    releases: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    cuda: str | None = None
    method: str = WHEEL
    nvidia: bool = False
    build_options: tuple[str, ...] = ()
    division: CiDivision | None = None
    runners: tuple[str, ...] = ()  # ARCHITECTURE=LABEL,...
    gpu_runners: tuple[str, ...] = ()  # GPU=LABEL,...
    level: CiLevel = CiLevel.ALL
    on: str | None = None
    store: str = ""
    objects: str = ""
    publish: str = ""
    publish_nvidia: bool = False
    cache: bool = True
    schedule: str = ""
    branch: str = ""  # that is published; the usual one where none is given
    minutes: int | None = None
    package: str = ""
    login: CiLogin = CiLogin.OIDC


@dataclass(frozen=True)
class CiJob:
    """A job that builds some variants."""

    name: str
    variants: tuple[str, ...]
    runner: tuple[str, ...]
    cache: str  # the name of what it keeps between runs; jobs that fetch or compile the same share it


@dataclass(frozen=True)
class CiProof:
    """A job that proves on a GPU what another job has built for it."""

    name: str
    of: CiJob  # the part of that job that is for this GPU
    short_names: tuple[str, ...]  # that its wheelhouses end with
    runner: tuple[str, ...]

    @property
    def job(self) -> str:
        return self.of.name

    @property
    def variants(self) -> tuple[str, ...]:
        return self.of.variants


@dataclass(frozen=True)
class CiPlan:
    """A workflow, before it is text."""

    system: CiSystem
    options: CiOptions
    jobs: tuple[CiJob, ...]
    proofs: tuple[CiProof, ...]
    where: Where | None
    needs: WorkflowNeeds  # of the build method
    unmatched: tuple[str, ...] = ()  # alternatives of selectors that select nothing

    @property
    def row(self) -> SystemRow:
        return ci_tables().system[self.system]

    @property
    def store(self) -> str:
        """The store of the option, or of the section of `--on`."""
        return self.options.store or (self.where.settings.store if self.where else "")

    @property
    def cluster(self) -> str:
        """The kind of cluster that the section of `--on` starts; empty: none."""
        return self.where.settings.cluster if self.where else ""

    @property
    def objects(self) -> str:
        """The object cache of the option, or of the section; only builds from source have one."""
        return self.options.objects or (self.where.settings.objects if self.where and self.compiles else "")

    @property
    def minutes(self) -> int:
        """Until a job is stopped; a hosted runner stops it in any case."""
        most = self.row.most_minutes if self.uses_hosted else self.needs.minutes
        return self.options.minutes or min(self.needs.minutes, most)

    @property
    def build_minutes(self) -> int:
        """Until a build is stopped, early enough that what it compiled can still be kept."""
        return self.minutes - min(20, self.minutes // 10)

    @property
    def through_store(self) -> bool:
        """Whether jobs that need what another one built take it from the store, by the same `build`.

        The keys of a build from source are made of a machine's compiler, so that another machine would compile again.
        """
        return bool(self.store) and self.options.method != SOURCE

    @property
    def makes_wheels(self) -> bool:
        return self.options.method != NIX

    @property
    def hands_files(self) -> bool:
        """Whether wheelhouses go from job to job as artifacts of the workflow."""
        return self.makes_wheels and not self.through_store

    @property
    def caches(self) -> bool:
        """What a cluster's workers keep is theirs; and who opens a pull request may read what the system keeps."""
        return self.options.cache and not _is_remote(self.where) and not self.options.nvidia

    @property
    def trusts_merge_requests(self) -> bool:
        """Whether code of a pull request may run: not on a machine of the user's, nor with a secret."""
        runners = [job.runner for job in self.jobs] + [proof.runner for proof in self.proofs]
        return not self.store and not _is_remote(self.where) and all(map(self.is_hosted, runners))

    @property
    def uses_hosted(self) -> bool:
        """Whether a job builds on a runner of the system."""
        return any(self.is_hosted(job.runner) for job in self.jobs)

    def is_hosted(self, runner: tuple[str, ...]) -> bool:
        """Whether a runner is the system's own, whose disk is gone after the job."""
        return runner in self.row.runner.values()

    @property
    def publisher(self) -> tuple[str, ...]:
        """The runner that publishes."""
        return self.jobs[0].runner

    @property
    def by_hand(self) -> tuple[str, ...]:
        """What stores and indexes need that is not in the file."""
        schemes, found = ci_tables().scheme, []
        for one in dict.fromkeys(map(_scheme, (self.store, self.options.publish))):
            if one not in ("", "file", *schemes):
                found.append(f"the fsspec plug-in and the credentials of {one}://")
            elif one in schemes and not schemes[one].secrets and not self._oidc(schemes[one]):
                found.append(f"the credentials of {one}://")
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the workflow cannot do by itself, a sentence each."""
        found = [f"{name} matches no variant." for name in self.unmatched]
        found += [f"Add {what} to it yourself." for what in self.by_hand]
        found += self._cluster_warnings()
        if version.PUBLISHED and not self.options.package and not _from_index():
            found.append(
                f"Its jobs install torchtailor {__version__} from the package index, and this one is not "
                "from there: name another with --package, such as git+URL@TAG or a folder of the repository."
            )
        return tuple(found)

    def _cluster_warnings(self) -> Iterable[str]:
        cluster = self.cluster
        if cluster and cluster not in ci_tables().cluster:
            yield f"Add the package of {cluster} to the lines with `pip install` yourself."
        if cluster and self.uses_hosted:
            yield (
                f"Its jobs start the workers of [farm.{self.options.on}] ({cluster}), which hosted runners can hardly "
                "reach: name a runner of yours with --runner x86_64=LABEL."
            )

    @property
    def every_variant(self) -> tuple[str, ...]:
        return _joined(job.variants for job in self.jobs)

    @property
    def python(self) -> str:
        """The Python of jobs for all variants."""
        return _python_for(self.every_variant)

    @property
    def pythons(self) -> Mapping[str, str]:
        """The Python of each job that builds, by its name."""
        return {job.name: _python_for(job.variants) for job in self.jobs}

    @property
    def own_pythons(self) -> bool:
        """Whether jobs differ in their Python, or may once they are planned anew."""
        return self.follows or len({*self.pythons.values(), self.python}) > 1

    @property
    def follows(self) -> bool:
        """Whether jobs are planned when it runs: a schedule follows the releases that come."""
        return bool(self.options.schedule)

    @property
    def matrix(self) -> CiMatrices:
        """What each job that builds or proves is given, as the matrices of the system."""
        built: list[CiRow] = [
            {
                "name": job.name,
                "runner": job.runner,
                "variants": " ".join(job.variants),
                **({"python": self.pythons[job.name]} if self.own_pythons else {}),
                **({"cache": job.cache} if self.caches else {}),
            }
            for job in self.jobs
        ]
        proven: list[CiRow] = [
            {
                "name": proof.name,
                "runner": proof.runner,
                "of": proof.of.name,
                "variants": " ".join(proof.of.variants),
                **({"python": self.pythons[proof.of.name]} if self.own_pythons else {}),
                **({"houses": " ".join(proof.short_names)} if self.makes_wheels else {}),
            }
            for proof in self.proofs
        ]
        return {"build": {"include": built}, "prove": {"include": proven}}

    @property
    def most_at_once(self) -> int:
        """The jobs that the system counts: of GitHub those of a matrix, of GitLab all of a pipeline."""
        if self.system is CiSystem.GITHUB:
            return max(len(self.jobs), len(self.proofs))
        return len(self.jobs) * (2 if self.options.publish else 1) + len(self.proofs)

    @property
    def compiles(self) -> bool:
        return self.options.method == SOURCE

    def build_line(self, *, elsewhere: bool = False) -> str:
        """The options of `torchtailor build` after the variants; `elsewhere`, to take what is in the store."""
        options = self.options
        words = ["--via", options.method, "-o", "dist", *self.needs.options]
        words += ["--nvidia"] if options.nvidia else []
        words += options.build_options
        line = [shlex.join(words)]
        if on := HERE if elsewhere else self.on:
            line.append(f"--on {shlex.quote(on)}")
        if self.store:
            line.append('--store "$STORE"')
        if self.objects:
            line.append('--objects "$OBJECTS"')
        return " ".join(line)

    @property
    def on(self) -> str:
        """Where it is built: a store needs a farm, if only of this process."""
        return self.options.on or (HERE if self.store else "")

    def _schemes(self, *, publishes: bool) -> tuple[SchemeRow, ...]:
        known = ci_tables().scheme
        given = (self.store, self.options.publish if publishes else "")
        return tuple(known[scheme] for scheme in dict.fromkeys(map(_scheme, given)) if scheme in known)

    def _oidc(self, row: SchemeRow) -> OidcRow | None:
        """The login without a secret, if there is one on this system and it was not refused."""
        known = row.oidc if self.options.login is CiLogin.OIDC else None
        return known if known and (self.system is CiSystem.GITHUB or known.audience) else None

    def logins(self, *, publishes: bool) -> tuple[OidcRow, ...]:
        """The logins of a job by its identity; that of the index is for the job that publishes alone."""
        return tuple(found for row in self._schemes(publishes=publishes) if (found := self._oidc(row)))

    @property
    def oidc_variables(self) -> tuple[str, ...]:
        """What the project has to say for these logins; no secrets."""
        return _joined(row.variables for row in self.logins(publishes=True))

    def secrets(self, *, publishes: bool) -> tuple[str, ...]:
        """The secrets of a job; those of the index are for the job that publishes alone."""
        return _joined(row.secrets for row in self._schemes(publishes=publishes) if not self._oidc(row))

    @property
    def publish_secrets(self) -> tuple[str, ...]:
        """Those that no job but the one that publishes gets."""
        return tuple(name for name in self.secrets(publishes=True) if name not in self.secrets(publishes=False))

    def variables(self, *, publishes: bool) -> Mapping[str, str]:
        """The variables of a job, addresses and no secrets, with what they are where they are not set."""
        rows = self._schemes(publishes=publishes)
        return {name: value for row in rows for name, value in row.variables.items()}

    def settings(self, *, publishes: bool) -> Mapping[str, str]:
        """What the plug-ins need beside a login by identity."""
        return {name: value for row in self.logins(publishes=publishes) for name, value in row.settings.items()}

    @property
    def requirement(self) -> str:
        """What pip installs: torchtailor with the extras that the jobs need."""
        extras = set(self.needs.extras)
        extras |= {"farm"} if self.on else set()
        extras |= {"publish"} if self.options.publish else set()
        if self.package_path:
            return f"{self.options.package}[{','.join(sorted(extras))}]"
        return _with_extras(self.options.package or origin.pinned(), extras)

    @property
    def package_path(self) -> str:
        """Where the repository has the torchtailor that is installed; empty if it is from elsewhere."""
        package = self.options.package
        local = "://" not in package and ("/" in package or package.endswith(".whl") or package == ".")
        return posixpath.normpath(package) if local else ""

    def watched(self, path: str) -> tuple[str, ...]:
        """The files whose change starts the workflow, which is at `path`."""
        package = self.package_path
        inside = package and not package.startswith(("/", ".."))
        wheel = package.endswith(".whl")
        more = (package if wheel else "**" if package == "." else f"{package}/**",) if inside else ()
        return (path, USER_FILE, *more)

    @property
    def packages(self) -> tuple[str, ...]:
        """What pip installs beside it: for the method, and plug-ins of fsspec and of Dask for the cluster of `--on`."""
        schemes = (row.packages for row in self._schemes(publishes=True))
        return _joined((self.needs.packages, *schemes, ci_tables().cluster.get(self.cluster, ())))

    @cached_property
    def digest(self) -> str:
        """Of the options, which decide what is fetched."""
        return _hash(self.build_line())

    @property
    def cached_paths(self) -> tuple[str, ...]:
        """What is kept between runs: what was fetched, not what was cut for one GPU; ccache's objects, not the tree."""
        farm_here = bool(self.on) and not self.store  # its store is in the cache
        kept = ".cache/torchtailor" if farm_here else ".cache/torchtailor/blobs"
        return (kept, ".work/ccache") if self.compiles else (kept,)

    @property
    def published(self) -> str:
        """The index, as it may be shown."""
        return redact(self.options.publish)


class CiJobDocument(Struct):
    """A job that builds."""

    name: str
    variants: tuple[str, ...]
    runner: Annotated[tuple[str, ...], Meta(description="labels")]


class CiProofDocument(Struct):
    """A job that proves on a GPU what another one built."""

    name: str
    job: str = field(name="of")
    variants: tuple[str, ...]
    runner: Annotated[tuple[str, ...], Meta(description="labels")]


class CiDocument(Struct):
    """A workflow."""

    path: Path
    written: bool
    text: Annotated[str, Meta(description="the workflow")]
    system: CiSystem
    jobs: tuple[CiJobDocument, ...]
    proofs: tuple[CiProofDocument, ...]
    matrix: Annotated[CiMatrices, Meta(description="GitHub's, of its jobs build and prove")]
    published: Annotated[str, Meta(description="the index; empty: none")] = field(name="publish")
    warnings: Annotated[tuple[str, ...], Meta(description="what it cannot do by itself")]


def plan_ci(catalog: Catalog, system: CiSystem, options: CiOptions) -> CiPlan:
    """The jobs that build the variants of the selectors; nothing is asked of an index."""
    _check(system, options)
    where = parse_where(options.on, catalog) if options.on is not None else None
    variants = _variants(catalog, options)
    runners = _runners(system, options.runners)
    divided = _divided(variants, options.division or _division(options, where))
    architectures = {name: _architecture({variant.arch for variant in some}) for name, some in divided.items()}
    _check_runners(options.runners, set(architectures.values()))
    jobs = tuple(
        CiJob(
            name,
            tuple(variant.unique_name for variant in some),
            runners[architectures[name]],
            _cache_name(options.method, some),
        )
        for name, some in divided.items()
    )
    proofs = tuple(_proofs(catalog, options, jobs, variants))
    nothing = unmatched(variants, [*filter(is_glob, options.selectors)])
    plan = CiPlan(system, options, jobs, proofs, where, catalog.method(options.method).workflow, nothing)
    _check_places(plan)
    if plan.uses_hosted and plan.minutes > plan.row.most_minutes:
        raise UsageError(
            f"--timeout {plan.minutes}: a job on a hosted runner ends after {plan.row.most_minutes} minutes.",
            "Write less, or name a runner of yours: --runner x86_64=LABEL.",
        )
    if proofs and not plan.makes_wheels and not plan.through_store:
        raise UsageError("What Nix built on one runner is not on another.", "Add --store, which is its binary cache.")
    if plan.most_at_once > plan.row.most_jobs:
        raise UsageError(
            f"{plan.most_at_once} jobs are more than the {plan.row.most_jobs} that {system.value} starts.",
            "Select fewer variants, or write --per gpu or --per architecture.",
        )
    return plan


def _check(system: CiSystem, options: CiOptions) -> None:
    """Refuse what cannot work, before anything is written."""
    texts = (options.store, options.objects, options.publish, options.package, options.schedule, options.branch)
    named = (*options.releases, *options.pythons, options.cuda or "", options.on or "", *options.selectors)
    for text in (*texts, *named, *options.build_options, *options.runners, *options.gpu_runners):
        check_word(text)
    for option, words in {"--package": (options.package,), "--build-options": options.build_options}.items():
        if any(map(_PASSWORD.search, words)):
            raise UsageError(
                f"{option} has a password in a URL, and everybody who sees the repository could read it.",
                "Keep it in a secret of the repository, and give it to pip as PIP_INDEX_URL or in a .netrc.",
            )
    if not _BRANCH.fullmatch(options.branch):
        raise UsageError(f"--branch {options.branch!r} is no name of a branch.", "Write one, such as main.")
    if not options.package and not origin.pinned():
        raise UsageError(
            "torchtailor is not on the package index yet, and the repository of this one is not known.",
            "Say what the jobs install: --package git+https://HOST/NAME@COMMIT, or a folder of your repository.",
        )
    if set(options.package) & set(" ;"):
        raise UsageError(
            f"--package {options.package!r} is not installable by pip: it has a space or a semicolon.", _PACKAGES
        )
    if not options.selectors:
        raise UsageError("No variant was named.", "Add a name or glob: torchtailor ci github 'sm{80,90}-avx2'.")
    if options.objects and options.method != SOURCE:
        raise UsageError("--objects is for builds from source.", "Add --via source, or omit it.")
    if options.publish and options.method == NIX:
        raise UsageError(
            "What Nix builds is published as a binary cache.", "Give --store s3://BUCKET instead of --publish."
        )
    if options.publish_nvidia and not (options.publish and options.nvidia):
        raise UsageError("--publish-nvidia needs --nvidia and --publish.", "Add them, or omit it.")
    if options.nvidia and options.method != WHEEL:
        raise UsageError("--nvidia is for official wheels.", "Omit it, or --via.")
    _check_schedule(system, options.schedule)


def check_word(text: str) -> None:
    """Refuse what would end a line of the workflow, or is not UTF-8: YAML has more line ends than a shell."""
    if not text.isprintable():
        raise UsageError(f"{redact(text)!r} has a control character.", "Write it in one line.")


def _check_schedule(system: CiSystem, schedule: str) -> None:
    if schedule and system is CiSystem.GITLAB:
        raise UsageError(
            "GitLab keeps schedules in the project, not in this file.",
            "Omit --schedule, and add one under Build > Pipeline schedules.",
        )
    if schedule and (why := cron_problem(schedule)):
        raise UsageError(f"--schedule {schedule!r} is not a cron line: {why}.", "Write it like '0 3 * * 1'.")


def _check_places(plan: CiPlan) -> None:
    options = plan.options
    option = "--store" if options.store else f"[farm.{options.on}] store"
    if plan.store:
        check_store(plan.store, option)
    if options.publish:
        check_store(options.publish, "--publish")
    if plan.store and options.method == NIX:
        binary_cache(plan.store)
    if plan.objects:
        remote_storage(plan.objects)
    elif plan.store and options.method == SOURCE:
        own_objects(plan.store)
    if options.nvidia and not plan.store:
        raise UsageError(
            "Without a store, jobs hand wheels on as artifacts of the workflow, which may be public; NVIDIA's licence "
            "forbids that for changed copies of its libraries.",
            "Add --store with a bucket or folder of yours, or omit --nvidia.",
        )
    _check_folders(plan, option)


def _check_folders(plan: CiPlan, store_option: str) -> None:
    """Refuse a folder for what must stay, where it would be on the disk of a hosted runner."""
    used = (
        (store_option, plan.store, [job.runner for job in plan.jobs]),
        ("--publish", plan.options.publish, [plan.publisher]),
    )
    for option, where, runners in used:
        hosted = [kind for kind, labels in plan.row.runner.items() if labels in runners]
        if hosted and _is_folder(where):
            raise UsageError(
                f"{option} {redact(where)} is a folder, which hosted runners do not keep.",
                f"Give a bucket (s3://BUCKET/PATH), or a runner of yours that has it: --runner {hosted[0]}=LABEL.",
            )


def _variants(catalog: Catalog, options: CiOptions) -> tuple[Variant, ...]:
    releases = recipe_releases(catalog)[-1] if options.method == NIX else None
    choices = choose(
        catalog,
        options.selectors,
        release=options.releases,
        python=options.pythons,
        cuda=options.cuda,
        method=options.method,
        glob_release=releases,
    )
    return tuple(choice.variant for choice in choices)


def _division(options: CiOptions, where: Where | None) -> CiDivision:
    """A cluster takes all at once; else a job builds what fits on a runner's disk, or in its time."""
    if _is_remote(where):
        return CiDivision.ALL
    return CiDivision.GPU if options.method == WHEEL else CiDivision.VARIANT


def _divided(variants: Sequence[Variant], division: CiDivision) -> Mapping[str, Sequence[Variant]]:
    """By what one job builds; a job has one Python, but for one that builds all."""
    found: dict[str, list[Variant]] = {}
    several = len({variant.python for variant in variants}) > 1
    for variant in variants:
        python = f"-python{variant.python.replace('.', '')}" if several else ""
        name = {
            CiDivision.ALL: "all",
            CiDivision.ARCHITECTURE: f"{variant.arch}{python}",
            CiDivision.GPU: f"{variant.gpu_name}-{variant.arch}{python}",
            CiDivision.VARIANT: variant.unique_name,
        }[division]
        found.setdefault(name, []).append(variant)
    return found


def _python_for(variants: Collection[str]) -> str:
    """That of the wheels, so that they can be imported; ours where they have several, or one that is too old for us."""
    named = {ParsedName.parse(name).python for name in variants}
    only = named.pop() if len(named) == 1 else None
    return only if only and python_key(only) >= python_key(_OLDEST_PYTHON) else DEFAULT_PYTHON


def _architecture(kinds: Collection[str]) -> str:
    """Of the runner: wheels for both are cut on either."""
    return "x86_64" if "x86_64" in kinds else next(iter(kinds))


def _cache_name(method: str, variants: Iterable[Variant]) -> str:
    """Of what jobs share: the official wheels of a toolkit, architecture and Python; from source, an ISA's objects."""
    names = sorted(
        {
            f"{variant.release.tag}-{variant.isa.name}"
            if method == SOURCE
            else f"{variant.release.tag}-{_toolkit(variant)}-{variant.arch}-python{variant.python.replace('.', '')}"
            for variant in variants
        }
    )
    return names[0] if len(names) == 1 else _hash(" ".join(names))


def _toolkit(variant: Variant) -> str:
    return f"cuda{str(variant.build.cuda).replace('.', '_')}" if variant.build.cuda else "cpu"


def _runners(system: CiSystem, given: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    runners = dict(ci_tables().system[system].runner)
    for text in given:
        kind, labels = _labels(text, "--runner", "x86_64=self-hosted,linux")
        if kind not in runners:
            raise UsageError(f"--runner {text!r} names no architecture.", f"Known: {', '.join(runners)}.")
        runners[kind] = labels
    return runners


def _check_runners(given: Iterable[str], used: Collection[str]) -> None:
    for text in given:
        if (kind := text.partition("=")[0].strip()) not in used:
            raise NoMatchError(
                f"--runner {text!r}: no job runs on {kind}.", f"Omit it: all are on {', '.join(sorted(used))}."
            )


def _labels(text: str, option: str, example: str) -> tuple[str, tuple[str, ...]]:
    name, equals, rest = text.partition("=")
    labels = tuple(label.strip() for label in rest.split(",") if label.strip())
    if not equals or not labels or not all(map(_LABEL.fullmatch, labels)):
        raise UsageError(f"{option} {text!r} is not NAME=LABEL,...", f"Write {option} {example}.")
    return name.strip(), labels


def _proofs(
    catalog: Catalog, options: CiOptions, jobs: Sequence[CiJob], variants: Sequence[Variant]
) -> Iterable[CiProof]:
    for text in options.gpu_runners:
        name, labels = _labels(text, "--gpu-runner", "sm90=self-hosted,h100")
        gpu, slash, arch = name.partition("/")
        sm = catalog.gpu(gpu).sm
        kinds = {variant.arch for variant in variants if sm in {gpu.sm for gpu in variant.gpus}}
        kinds &= {arch} if slash else kinds
        if not kinds:
            raise NoMatchError(
                f"--gpu-runner {text!r}: none of the variants is for {name}.",
                "Name a GPU that is built: sm90=LABEL, or sm90/aarch64=LABEL.",
            )
        arch = _architecture(kinds)
        wanted = {
            variant.unique_name: variant.short_name
            for variant in variants
            if sm in {gpu.sm for gpu in variant.gpus} and variant.arch == arch
        }
        for job in jobs:
            if mine := tuple(variant for variant in job.variants if variant in wanted):
                part = replace(job, variants=mine)
                prefix = job.name if sm in job.name else f"{job.name}-{sm}"
                yield CiProof(f"{prefix}-gpu", part, tuple(dict.fromkeys(wanted[one] for one in mine)), labels)


def _with_extras(package: str, extras: Collection[str]) -> str:
    """A name and version, or a URL, with extras as pip takes them."""
    if "://" in package:
        return f"torchtailor[{','.join(sorted(extras))}] @ {package}"
    try:
        wanted = Requirement(package)
    except InvalidRequirement as error:
        raise UsageError(f"--package {package!r} is not installable by pip.", _PACKAGES) from error
    return f"{wanted.name}[{','.join(sorted({*extras, *wanted.extras}))}]{wanted.specifier}"


def _from_index() -> bool:
    """Whether pip took this torchtailor from an index: a checkout or a folder has a direct URL, or no metadata."""
    try:
        found = distribution("torchtailor")
    except PackageNotFoundError:
        return False
    version = Version(__version__)
    return found.read_text("direct_url.json") is None and not version.is_devrelease and version.local is None


def _scheme(where: str) -> str:
    scheme = urlsplit(where).scheme
    return {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs", "ssh": "sftp"}.get(scheme, scheme)


def _is_remote(where: Where | None) -> bool:
    """Whether it is built on other machines than the runner."""
    return where is not None and where.kind.is_remote


def _is_folder(where: str) -> bool:
    return bool(where) and _scheme(where) in ("", "file")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _joined(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))
