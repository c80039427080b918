"""What compiling PyTorch for an instruction set brings, as it was measured."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from torchtailor.catalog.schema import Strict

_PERCENT = "In percent of the official wheel's time: below 100 is faster."


class CompiledTime(Strict, frozen=True, kw_only=True):
    """The time of one operation."""

    what: Annotated[str, Meta(description="The operation: a convolution, attention.")]
    percent: Annotated[int, Meta(description=_PERCENT, ge=1)]


class CompiledBuild(Strict, frozen=True, kw_only=True):
    """A build from source, compared with the official wheel of the same version on one CPU."""

    isa: Annotated[str, Meta(description="The instruction set it was compiled for; the key of the row.")]
    geometric_mean: Annotated[int, Meta(description=_PERCENT, ge=1)]
    operations: Annotated[int, Meta(description="How many operations were measured.", ge=1)]
    best: Annotated[CompiledTime, Meta(description="The operation that gained most.")]
    worst: Annotated[CompiledTime, Meta(description="The operation that gained least.")]
    pytorch: Annotated[str, Meta(description="The version of both.")]
    profile: Annotated[str, Meta(description="The profile of the build.")]
    cpu: Annotated[str, Meta(description="The CPU that both ran on.")]
    microarchitecture: Annotated[str, Meta(description="Its name in this catalog; empty: any CPU.")] = ""
    lacks: Annotated[str, Meta(description="What the official wheel has and this build has not.")] = ""
    date: Annotated[str, Meta(description="When it was measured.")]
    source: Annotated[str, Meta(description="The document with all numbers.")]
