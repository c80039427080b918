"""The jobs of a farm as frozen values: what each needs and gives is named by keys of content, never by a place.

The key of an output is made of all that decides its bytes: the keys of its inputs, its options and the code that makes
it. So it is known before anything is fetched, and the same work has the same key on every machine.
"""

from __future__ import annotations

import hashlib
import tomllib
from enum import Enum

import msgspec

from torchtailor.building.wheel_jobs import CutForGpus, FetchWheel, PackVariant, encode_job
from torchtailor.catalog import Catalog
from torchtailor.core.version import code_key

# The parts of the user's file that say where and what is built, not what anything is.
_CHOICES = ("farm", "method", "tailor")


def own_rows(catalog: Catalog) -> str:
    """A digest of the rows that the user's file adds to the catalog, which decide what is compiled and how it is
    judged; empty where it adds none."""
    if catalog.user_file is None:
        return ""
    tables = tomllib.loads(catalog.user_file.read_text("utf-8"))
    rows = {name: table for name, table in tables.items() if name not in _CHOICES}
    return hashlib.sha256(msgspec.json.encode(rows, order="deterministic")).hexdigest() if rows else ""


PROVEN_LEVEL = "static"  # of `verify`: a worker need not be able to run what it has built


class ProveVariant(msgspec.Struct, frozen=True, tag="prove"):
    """Verify a wheelhouse, as `torchtailor verify --level static` does."""

    wheelhouse: str  # its key
    variant: str
    gpu: str | None
    rows: str = ""  # a digest of the user's rows of the catalog, by which it is judged


class FetchSource(msgspec.Struct, frozen=True, tag="source"):
    """Put a source tree into the store, as a tarball."""

    origin: str
    place: str
    ref: str
    digest: str  # of its content, or of the commit
    commit: str = ""  # that a version between releases is named after

    @property
    def key(self) -> str:
        return hashlib.sha256(f"source\n{self.digest}".encode()).hexdigest()


class SourceSpec(msgspec.Struct, frozen=True):
    """One configured tree: a source, the instruction set and Python of a variant, and GPUs."""

    variant: str  # whose instruction set, release, toolkit and Python it has
    gpus: tuple[str, ...]  # of a library for several of them
    tree: str  # the key of the source
    origin: str
    place: str  # its name, for the manifest
    ref: str
    toolchain: str  # the compiler and glibc that all workers have
    commit: str = ""  # that a version between releases is named after: the tree comes without its history
    rows: str = ""  # a digest of the user's rows of the catalog
    profile: str = "full"
    overrides: tuple[str, ...] = ()
    cuda_from_wheels: bool = False
    skip_checks: tuple[str, ...] = ()
    bundle: bool = True
    verify: bool = True
    with_dependencies: bool = True
    targets: tuple[str, ...] = ()


class CompilePart(Enum):
    """Files of a build that are compiled by the same shards."""

    HOST = "host"
    PYTHON = "python"  # of these, files that include Python's headers: all that another Python compiles again
    TOOLKIT = "toolkit"  # these and the files of libraries for CUDA: all that another toolkit, or none, compiles again
    DEVICE = "device"


class ConfigureSource(msgspec.Struct, frozen=True, tag="configure"):
    """Configure a tree; the list of files that it compiles."""

    spec: SourceSpec


class CompileShard(msgspec.Struct, frozen=True, tag="compile"):
    """Compile every n-th part of the files, by weight, into the objects that all machines share."""

    spec: SourceSpec
    part: CompilePart
    shard: int
    of: int
    objects: str  # a digest of where the objects are
    after: tuple[str, ...] = ()  # shards of another Python, whose objects it shares


class LinkSource(msgspec.Struct, frozen=True, tag="link"):
    """Build the whole: shards have compiled it, so that nearly every object is found; and bundle its libraries."""

    spec: SourceSpec
    after: tuple[str, ...]  # the keys of the shards


class PackSource(msgspec.Struct, frozen=True, tag="pack-source"):
    """Cut what was linked to one GPU, prove it, and write the wheelhouse of a variant."""

    spec: SourceSpec
    gpu: str | None


class RealiseDerivation(msgspec.Struct, frozen=True, tag="nix"):
    """Build one derivation with Nix; what it gives is in the binary cache of the store."""

    derivation: str  # its path in the Nix store, which is made of all that decides its output
    after: tuple[str, ...] = ()  # the keys of derivations that it needs and that have to be built


SourceJob = ConfigureSource | CompileShard | LinkSource | PackSource
FarmJob = FetchWheel | CutForGpus | PackVariant | ProveVariant | FetchSource | SourceJob | RealiseDerivation


def needs_of(job: FarmJob) -> tuple[str, ...]:
    """The keys of the outputs that a job reads."""
    match job:
        case FetchWheel():
            return ()
        case CutForGpus():
            return (job.source,)
        case ProveVariant():
            return (job.wheelhouse,)
        case PackVariant():
            return job.needs
        case FetchSource():
            return ()
        case ConfigureSource():
            return (job.spec.tree,)
        case CompileShard():
            return (job.spec.tree, _configured(job.spec), *job.after)
        case LinkSource():
            return (job.spec.tree, *job.after)
        case PackSource():
            return (job.spec.tree, _linked(job.spec))
        case RealiseDerivation():
            return job.after


def inputs_of(job: FarmJob) -> tuple[str, ...]:
    """Those of them whose files it is made of; others only have to be done before it."""
    return (job.spec.tree,) if isinstance(job, CompileShard | LinkSource) else needs_of(job)


def gives_of(job: FarmJob) -> tuple[str, ...]:
    """The keys of the outputs that a job makes."""
    match job:
        case FetchWheel():
            return (job.key,)
        case CutForGpus():
            return tuple(job.key_for(gpu) for gpu in job.gpus)
        case PackVariant():
            return (_key("pack", *job.needs, body=job),)
        case ProveVariant():
            return (_key("prove", body=job),)
        case FetchSource():
            return (job.key,)
        case ConfigureSource():
            return (_configured(job.spec),)
        case CompileShard():
            # not of `after`: how another Python was cut into shards changes nothing
            return (_key("compile", body=msgspec.structs.replace(job, after=())),)
        case LinkSource():
            return (_linked(job.spec),)
        case PackSource():
            return (_key("pack", body=job),)
        case RealiseDerivation():
            return (hashlib.sha256(f"nix\n{job.derivation}".encode()).hexdigest(),)


def _configured(spec: SourceSpec) -> str:
    return _key("configure", body=ConfigureSource(spec))


def _linked(spec: SourceSpec) -> str:
    return _key("link", body=LinkSource(spec, ()))


def _key(*parts: str, body: FarmJob) -> str:
    text = "\n".join((code_key(), *parts)).encode()
    return hashlib.sha256(text + b"\n" + encode_job(body)).hexdigest()
