"""The options of a build from official wheels."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchtailor.backends.cutting import CutOptions
from torchtailor.catalog import Catalog
from torchtailor.errors import UsageError
from torchtailor.fetch.target import DEFAULT_GLIBC
from torchtailor.gpucode.targets import NO_GPU
from torchtailor.workload.choice import TracedWorkload

# Between packages; not the one in `foo[a,b]` or in `foo>=1,<2`.
_COMMA = re.compile(r",(?![^\[]*\])(?!\s*[<>=!~])")


@dataclass(frozen=True, slots=True)
class WheelOptions:
    """What is built beside torch, how wheels are cut, and where they come from."""

    companions: tuple[str, ...] = ()  # torchvision, torchaudio, ...; also several in one word, with commas
    nvidia: bool | None = None  # None: as torchtailor.toml has it
    recompress: bool = False
    keep_ptx: bool = False
    strip: bool = True
    workload: TracedWorkload | None = None  # what stays in place; the rest goes to packs
    split: bool = False  # one wheel without GPU code for all GPUs, and a wheel of packs for each
    variants: bool = False  # also an index of wheel variants
    without_gpu: bool = False  # for the CPU: a CUDA build whose GPU code is removed, whatever else there is
    glibc: str = "{}.{}".format(*DEFAULT_GLIBC)
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    offline: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"2\.\d{1,2}", self.glibc):
            raise UsageError(f"--glibc {self.glibc!r} is not a version such as 2.28.", "Write --glibc 2.28.")
        if self.split and (self.workload or self.recompress or self.keep_ptx):
            raise UsageError(
                "--split cannot be combined with --workload, --recompress or --keep-ptx: it moves all code as it is.",
                "Leave them out, or build without --split.",
            )
        words = [word.strip() for item in self.companions for word in _COMMA.split(item)]
        companions = tuple(dict.fromkeys(word for word in words if word not in ("", "torch")))
        object.__setattr__(self, "companions", companions)

    def resolved(self, catalog: Catalog) -> WheelOptions:
        """The same with every choice made."""
        return replace(self, nvidia=catalog.tailor.nvidia if self.nvidia is None else self.nvidia)

    @property
    def companion_extras(self) -> dict[str, tuple[str, ...]]:
        """The names of the companions, each with its extras."""
        wanted = (Requirement(word) for word in self.companions)
        return {canonicalize_name(one.name): tuple(sorted(map(canonicalize_name, one.extras))) for one in wanted}

    @property
    def glibc_version(self) -> tuple[int, int]:
        major, minor = self.glibc.split(".")
        return int(major), int(minor)

    def cut_options_for(self, gpu: str) -> CutOptions:
        """The options of a cut for this GPU; without one there is no code to be kept, compressed or packed."""
        if gpu == NO_GPU:
            return CutOptions(nvidia=bool(self.nvidia), strip=self.strip)
        return CutOptions(
            bool(self.nvidia),
            self.recompress,
            self.keep_ptx,
            self.strip,
            self.workload.trace.to_bytes().decode() if self.workload else "",
            self.workload.margin if self.workload else "exact",
            self.split,
        )

    def to_json(self) -> dict[str, object]:
        """The options that decide the bytes of the output."""
        workload = self.workload
        used = {"workload": {"trace": workload.trace.digest, "margin": workload.margin}} if workload else {}
        return {
            "with": list(self.companions),
            "nvidia": bool(self.nvidia),
            "recompress": self.recompress,
            "keep_ptx": self.keep_ptx,
            **({"split": True} if self.split else {}),
            **({"gpu": NO_GPU} if self.without_gpu else {}),
            **used,
            "strip": self.strip,
            "glibc": self.glibc,
        }
