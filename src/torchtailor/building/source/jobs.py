"""The jobs of a build from source, as values that can be sent to another machine."""

from __future__ import annotations

import hashlib
from enum import Enum

import msgspec

from torchtailor.building.graph.graph import job_key


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

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    @property
    def gives(self) -> tuple[str, ...]:
        return (self.key,)


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

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.spec.tree,)

    @property
    def gives(self) -> tuple[str, ...]:
        return (job_key("configure", self),)


class CompileShard(msgspec.Struct, frozen=True, tag="compile"):
    """Compile every n-th part of the files, by weight, into the objects that all machines share."""

    spec: SourceSpec
    part: CompilePart
    shard: int
    of: int
    objects: str  # a digest of where the objects are
    after: tuple[str, ...] = ()  # shards of another Python, whose objects it shares

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.spec.tree, *ConfigureSource(self.spec).gives, *self.after)

    @property
    def gives(self) -> tuple[str, ...]:
        # not of `after`: how another Python was cut into shards changes nothing
        return (job_key("compile", msgspec.structs.replace(self, after=())),)


class LinkSource(msgspec.Struct, frozen=True, tag="link"):
    """Build the whole: shards have compiled it, so that nearly every object is found; and bundle its libraries."""

    spec: SourceSpec
    after: tuple[str, ...]  # the keys of the shards

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.spec.tree, *self.after)

    @property
    def gives(self) -> tuple[str, ...]:
        return (job_key("link", msgspec.structs.replace(self, after=())),)


class PackSource(msgspec.Struct, frozen=True, tag="pack-source"):
    """Cut what was linked to one GPU, prove it, and write the wheelhouse of a variant."""

    spec: SourceSpec
    gpu: str | None

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.spec.tree, *LinkSource(self.spec, ()).gives)

    @property
    def gives(self) -> tuple[str, ...]:
        return (job_key("pack", self),)


SourceJob = FetchSource | ConfigureSource | CompileShard | LinkSource | PackSource
