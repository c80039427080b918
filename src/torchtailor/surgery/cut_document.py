"""A cut as manifests, the journal, `--json` and the jobs of a build have it; what was not chosen is left out."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from torchtailor.workload.trace import Trace


class TargetDocument(msgspec.Struct, frozen=True):
    """The GPUs that code is kept for."""

    gpus: tuple[str, ...]
    archs: tuple[str, ...] = ()
    keep_ptx: bool = False
    label: str = ""


class RecompressionPolicy(msgspec.Struct, frozen=True):
    """How code is stored anew."""

    level: int
    driver: str | None


class WorkloadPolicy(msgspec.Struct, frozen=True):
    """What stays in place."""

    trace: Annotated[str, Meta(description="its digest")]
    margin: str
    pack: bool


class PagesPolicy(msgspec.Struct, frozen=True):
    """Which pages of libraries left the file, of those that the workload did not touch."""

    left: Annotated[str, Meta(description="code, or all: read-only data too")]
    gap: Annotated[int, Meta(description="bytes: fewer between touched pages stay")]
    debuggable: Annotated[bool, Meta(description="true: unwind tables stay")]
    packs: Annotated[str, Meta(description="how they are stored: none (as they are) or zstd")]


class PolicyDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that was chosen but the GPUs; what stands below `recompress` is absent where it was not."""

    strip: bool | None
    nvidia: bool
    recompress: RecompressionPolicy | None
    drop: Annotated[tuple[str, ...], Meta(description="rules of --drop")] = ()
    lto: Annotated[bool, Meta(description="false: LTO-IR was removed")] = True
    relr: Annotated[bool, Meta(description="relocations were packed, for glibc 2.36")] = False
    split: Annotated[bool, Meta(description="true: all code went to packs")] = False
    workload: Annotated[WorkloadPolicy | None, Meta(description="trace, margin, pack")] = None
    drop_unopened: Annotated[bool, Meta(description="true: files that the workload never opened went")] = False
    index_modules: Annotated[bool, Meta(description="true: imported modules are in one file a package too")] = False
    driver: Annotated[str | None, Meta(description="the oldest that the result must run on")] = None
    caches: Annotated[str | None, Meta(description="the digest of compile caches that were added")] = None
    host_pages: Annotated[PagesPolicy | None, Meta(description="pages of libraries that went to packs")] = None


class CutDocument(msgspec.Struct, frozen=True):
    """What decides the bytes of an output."""

    target: TargetDocument
    policy: PolicyDocument


class JobCut(CutDocument, frozen=True, omit_defaults=True):
    """A cut as jobs have it, with all that another machine needs to make it."""

    trace: Trace | None = None  # of the workload
    also: tuple[str, ...] = ()  # see `Cut`
