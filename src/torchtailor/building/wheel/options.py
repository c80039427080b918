"""The options of a build from official wheels."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from dataclasses import field as data_field
from typing import Annotated

from msgspec import Meta, field
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchtailor.catalog import Catalog
from torchtailor.code.gpucode.targets import NO_GPU
from torchtailor.core.documents import document
from torchtailor.core.errors import UsageError
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.target import DEFAULT_GLIBC
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import JobCut, PolicyDocument

# Between packages; not the one in `foo[a,b]` or in `foo>=1,<2`.
_COMMA = re.compile(r",(?![^\[]*\])(?!\s*[<>=!~])")


class WheelOptionsDocument(PolicyDocument, frozen=True, omit_defaults=True, kw_only=True):
    """The options that decide the bytes of the output."""

    companions: tuple[str, ...] = field(name="with")
    gpu: Annotated[str, Meta(description="none: for machines without a GPU")] = ""
    glibc: str
    keep_ptx: bool


@dataclass(frozen=True, slots=True)
class WheelOptions(IndexOptions):
    """What is built beside torch, how wheels are cut, and where they come from."""

    companions: tuple[str, ...] = ()  # torchvision, torchaudio, ...; also several in one word, with commas
    cut: Cut = data_field(default_factory=Cut)  # the GPUs are those of the variants
    variants: bool = False  # also an index of wheel variants
    without_gpu: bool = False  # for the CPU: a CUDA build whose GPU code is removed, whatever else there is
    glibc: str = "{}.{}".format(*DEFAULT_GLIBC)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"2\.\d{1,2}", self.glibc):
            raise UsageError(f"--glibc {self.glibc!r} is not a version such as 2.28.", "Write --glibc 2.28.")
        words = [word.strip() for item in self.companions for word in _COMMA.split(item)]
        companions = tuple(dict.fromkeys(word for word in words if word not in ("", "torch")))
        object.__setattr__(self, "companions", companions)

    def resolved(self, catalog: Catalog) -> WheelOptions:
        """The same with every choice made."""
        return replace(self, cut=self.cut.resolved(catalog))

    @property
    def companion_extras(self) -> dict[str, tuple[str, ...]]:
        """The names of the companions, each with its extras."""
        wanted = (Requirement(word) for word in self.companions)
        return {canonicalize_name(one.name): tuple(sorted(map(canonicalize_name, one.extras))) for one in wanted}

    @property
    def glibc_version(self) -> tuple[int, int]:
        major, minor = self.glibc.split(".")
        return int(major), int(minor)

    def cut_for(self, gpu: str) -> JobCut:
        """The cut for this GPU; without one there is no code to be kept, compressed or packed."""
        if gpu == NO_GPU:
            return self.cut.without_gpu.for_job
        return self.cut.for_job

    @property
    def document(self) -> WheelOptionsDocument:
        cut = self.cut.document
        return document(
            WheelOptionsDocument,
            cut.policy,
            companions=self.companions,
            gpu=NO_GPU if self.without_gpu else "",
            glibc=self.glibc,
            keep_ptx=cut.target.keep_ptx,
        )
