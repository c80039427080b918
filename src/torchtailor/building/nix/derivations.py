"""The graph of a build with Nix: one derivation a job, and the store's binary cache between them.

Nix itself says which derivations have to be built: what the binary cache, a substituter or this machine has is not.
A worker takes the derivation and its inputs from the binary cache, builds it, and copies what it gives there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import msgspec

from torchtailor.building.farm.records import JobRecord
from torchtailor.building.farm.store import FarmStore, MissingOutputError
from torchtailor.building.graph.graph import GraphJob, JobGraph, JobWeight
from torchtailor.building.nix.backend import NixPlan
from torchtailor.building.nix.builder import NEEDED_BYTES, NixOutput, run_nix_job
from torchtailor.building.nix.job import NixJob, plan_nix
from torchtailor.building.nix.many import copy_to_cache
from torchtailor.building.planned_jobs import FarmVariant, JobPlace, PlannedJobs
from torchtailor.catalog import NIX, Catalog
from torchtailor.core.disk import staging_folder
from torchtailor.core.errors import TorchtailorError, UsageError
from torchtailor.nix.blueprint import GIGABYTES_PER_JOB
from torchtailor.nix.nix import NixRun, need_tool, run_nix
from torchtailor.nix.nixerrors import explain

_TORCH = re.compile(r"/[0-9a-z]{32}-(python[\d.]+-)?(py)?torch[^/]*$")
_TORCH_SECONDS = 12 * 3600.0  # of one core, by the tables of builds from source
_OTHER_SECONDS = 120.0
_OTHER_MEMORY = 1_000_000_000
_OTHER_BYTES = 500_000_000  # of disk
_BUILT = re.compile(r"^\s+(/\S+\.drv)$", re.MULTILINE)
# What another worker has just put into the cache must be found, although it was asked for before.
_FRESH = ("--option", "narinfo-cache-negative-ttl", "0")


class RealiseDerivation(msgspec.Struct, frozen=True, tag="nix"):
    """Build one derivation with Nix; what it gives is in the binary cache of the store."""

    derivation: str  # its path in the Nix store, which is made of all that decides its output
    after: tuple[str, ...] = ()  # the keys of derivations that it needs and that have to be built

    @property
    def key(self) -> str:
        return hashlib.sha256(f"nix\n{self.derivation}".encode()).hexdigest()

    @property
    def needs(self) -> tuple[str, ...]:
        return self.after

    @property
    def gives(self) -> tuple[str, ...]:
        return (self.key,)


@dataclass(frozen=True, kw_only=True)
class NixJobs(PlannedJobs):
    """The jobs of a build with Nix, and by variant the derivation that is its result."""

    derivations: Mapping[str, str]
    store: str

    def send(self) -> None:
        """Put derivations, with all that they refer to, where workers find them."""
        if derivations := [*self.derivations.values()]:
            copy_to_cache(derivations, binary_cache(self.store), derivation=True)

    def take(self, variant: FarmVariant, store: FarmStore) -> NixOutput:
        return take(variant.name, self.derivations[variant.name], self.plan.out, self.store, store)


def binary_cache(store: str) -> str:
    """The binary cache of a store: a folder in it, or the whole bucket, since Nix knows no folders of buckets."""
    parts = urlsplit(store)
    if parts.scheme in ("", "file"):
        return f"file://{Path(parts.path or store).absolute()}/nix"
    if parts.scheme != "s3":
        raise UsageError(f"Nix cannot copy to {parts.scheme}://.", "Give --store a folder, or s3://BUCKET.")
    return f"s3://{parts.netloc}{_s3_options(os.environ)}"


def _s3_options(variables: Mapping[str, str]) -> str:
    """Nix takes these from the address, where fsspec takes them from the environment."""
    given = {}
    if region := variables.get("AWS_DEFAULT_REGION"):
        given["region"] = region
    if endpoint := variables.get("AWS_ENDPOINT_URL"):
        address = urlsplit(endpoint)
        given |= {"endpoint": address.netloc, "scheme": address.scheme}
    return "?" + "&".join(f"{name}={value}" for name, value in given.items()) if given else ""


def nix_jobs_on(plan: NixPlan, place: JobPlace) -> NixJobs:
    """Instantiate the recipes, and ask Nix what has to be built; nothing is built or written but derivations."""
    cache = binary_cache(place.store)
    found = dict(_instantiated(place.catalog, plan))
    results = list(dict.fromkeys(found.values()))
    to_build = dict.fromkeys([*_missing(results, cache), *results])
    before = {one: [other for other in _references(one) if other in to_build] for one in to_build}
    users = _users(found, before)
    machines = {found[variant.name]: variant.arch for variant in plan.variants}

    def job(derivation: str) -> GraphJob:
        after = tuple(RealiseDerivation(other).key for other in before[derivation])
        big = bool(_TORCH.search(derivation))
        weight = JobWeight(
            _TORCH_SECONDS if big else _OTHER_SECONDS, GIGABYTES_PER_JOB * 10**9 if big else _OTHER_MEMORY
        )
        name = derivation.rpartition("/")[2][33:].removesuffix(".drv")
        machine = machines.get(derivation) or plan.variants[0].arch
        return GraphJob(
            RealiseDerivation(derivation, after), f"build {name}", weight, users[derivation], machine=machine
        )

    variants = tuple(FarmVariant(name, NIX, RealiseDerivation(one).key, {}, {}) for name, one in found.items())
    return NixJobs(plan, JobGraph(map(job, to_build)), variants, derivations=found, store=place.store)


def _instantiated(catalog: Catalog, plan: NixPlan) -> Iterator[tuple[str, str]]:
    """The derivation of each variant's recipe; one that has none yet is written to a folder for the moment."""
    with TemporaryDirectory(prefix="torchtailor-") as folder:
        for variant, planned in zip(plan.variants, plan.jobs, strict=True):
            recipe = planned.recipe
            if not recipe.is_file():
                recipe = plan_nix(catalog, variant, Path(folder)).recipe
            done = _nix("nix-instantiate", str(recipe.resolve()))
            yield variant.name, done.out.split()[-1].partition("!")[0]


def _missing(derivations: Sequence[str], cache: str) -> list[str]:
    """Those derivations among them and their inputs that neither this machine nor a cache has the output of."""
    empty = cache.startswith("file://") and not Path(cache.removeprefix("file://")).is_dir()  # Nix would make it
    done = _nix("nix-store", "--realise", "--dry-run", *(() if empty else _from(cache)), *derivations)
    rest = done.err.partition("will be built:")[2]
    return _BUILT.findall(rest.partition("will be fetched")[0])


def _references(derivation: str) -> list[str]:
    listed = _nix("nix-store", "--query", "--references", derivation).out
    return [line for line in listed.split() if line.endswith(".drv")]


def _users(found: Mapping[str, str], before: Mapping[str, Sequence[str]]) -> Mapping[str, tuple[str, ...]]:
    """By derivation, the variants that cannot be built without it."""
    users: dict[str, list[str]] = {one: [] for one in before}
    for variant, derivation in found.items():
        wanted, seen = [derivation], {derivation}
        while wanted:
            one = wanted.pop()
            users[one].append(variant)
            more = [other for other in before[one] if other not in seen]
            seen.update(more)
            wanted += more
    return {one: tuple(names) for one, names in users.items()}


def _from(cache: str) -> tuple[str, ...]:
    """The options that take what is built from the cache; what our own workers put there needs no signature."""
    joined = f"{cache}{'&' if '?' in cache else '?'}trusted=true"
    return ("--option", "extra-substituters", joined, *_FRESH)


def realise(job: RealiseDerivation, store: str, work: Path, *, cores: int) -> JobRecord:
    """Build one derivation, and put what it gives into the binary cache."""
    cache = binary_cache(store)
    needed = NEEDED_BYTES if _TORCH.search(job.derivation) else _OTHER_BYTES
    with staging_folder(work) as folder:
        options = ("--cores", str(cores), "--max-jobs", "1")
        run_nix_job(_nix_job(job.derivation, folder / "result", folder, cache, cores, options), needed=needed)
        outputs = _outputs(job.derivation)
        copy_to_cache(outputs, cache)
    return JobRecord("nix", (), {"derivation": job.derivation, "outputs": outputs})


def take(variant: str, derivation: str, out: Path, store: str, farm: FarmStore) -> NixOutput:
    """Make `result-VARIANT` of what the binary cache has; nothing is built here.

    Only what would have to be built is missing: a full disk, or a link that cannot be made, is no fault of the store's.
    """
    cache = binary_cache(store)
    logs = out / "logs" / variant
    job = _nix_job(derivation, out / f"result-{variant}", logs, cache, 1, ("--max-jobs", "0"))
    try:
        return run_nix_job(job, needed=0)
    except TorchtailorError as error:
        if derivation not in _missing([derivation], cache):
            raise
        key = RealiseDerivation(derivation).key
        farm.forget(key)
        raise MissingOutputError(key, farm.shown) from error


def _nix_job(derivation: str, link: Path, logs: Path, cache: str, cores: int, options: Sequence[str]) -> NixJob:
    tool = str(need_tool("nix-store"))
    command = (tool, "--realise", derivation, "--add-root", str(link), "--log-format", "internal-json", "-v")
    name = derivation.rpartition("/")[2]
    return NixJob(name, Path(derivation), link, logs, (*command, *_from(cache), *options), Path.cwd(), cores, {})


def _outputs(derivation: str) -> list[str]:
    return _nix("nix-store", "--query", "--outputs", derivation).out.split()


def _nix(tool: str, *words: str) -> NixRun:
    """What a tool of Nix printed; an error of it is explained."""
    done = run_nix(tool, words)
    if done.code:
        raise explain(done.err).error()
    return done
