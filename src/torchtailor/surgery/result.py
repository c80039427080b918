"""What tailoring one library gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Status(Enum):
    """How tailoring one library ended; `written` says whether there is an output file."""

    TAILORED = "tailored"  # GPU code was cut (and symbol tables, where asked for)
    STRIPPED = "stripped"  # there was no GPU code to cut; symbol tables went
    UNCHANGED = "unchanged"  # nothing of it could be made smaller: all is needed, or cannot leave its place
    NO_GPU_CODE = "no-gpu-code"  # and nothing to strip
    NOTHING_FOR_TARGET = "nothing-for-target"  # its GPU code runs on none of the targets: left as it is

    @property
    def written(self) -> bool:
        return self in (Status.TAILORED, Status.STRIPPED)


@dataclass(frozen=True, slots=True)
class CodeTally:
    """Images of one architecture: how many, and the bytes they take in the file."""

    images: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class Recompressed:
    """What recompression did: images that were stored smaller, and their bytes before and after."""

    images: int = 0
    before: int = 0
    after: int = 0
    level: int = 0
    from_cache: int = 0


@dataclass(frozen=True, slots=True)
class LibraryResult:
    """What tailoring one library gave; sizes are bytes.

    `kept` and `dropped` are by architecture as cuobjdump spells it (`sm_90a`, `compute_120`, `lto_50`). `floor` is
    the least the file could be with this policy: the kept GPU code as it is stored now and all loaded host code.
    `sha256_in` and `sha256_out` are hex digests; they are empty where no output was written (`status.written`).
    `warnings` are sentences for the user, such as a target for which the library has nothing.
    """

    status: Status
    size_before: int
    size_after: int
    gpu_before: int
    gpu_after: int
    floor: int
    kept: Mapping[str, CodeTally] = field(default_factory=dict)
    dropped: Mapping[str, CodeTally] = field(default_factory=dict)
    stripped: tuple[str, ...] = ()  # names of the sections that were removed
    recompressed: Recompressed | None = None
    sha256_in: str = ""
    sha256_out: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def saved(self) -> int:
        return self.size_before - self.size_after
