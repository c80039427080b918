"""The options of a build from source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog import Capability
from torchtailor.catalog.variants.variant import Variant


@dataclass(frozen=True)
class SourceOptions:
    """What is compiled, and how."""

    source: str | None = None  # GIT-URL@REF, a tarball or a folder; None: the official tag
    profile: str = "full"
    overrides: tuple[str, ...] = ()  # switches: USE_XNNPACK=0
    jobs: int | None = None  # None: as many as fit into memory
    resume: bool = True
    cuda_from_wheels: bool = False  # nvcc and CUDA from NVIDIA's wheels instead of an installed toolkit
    auto_fix: int = 0  # how many known safe fixes may be applied
    all_gpus: bool = False  # one library with code for every GPU of the ISA, cut for each GPU
    skip_checks: tuple[str, ...] = ()
    work: Path | None = None
    bundle: bool = True  # libraries that are not on every Linux are put into the wheel
    verify: bool = True
    with_dependencies: bool = True
    targets: tuple[str, ...] = ()  # ninja targets; none: all of PyTorch, and a wheel
    ccache: bool = True  # where it is installed
    objects: str = ""  # a storage of ccache's that several machines share


@dataclass(frozen=True)
class SourceRequest:
    """One build: a variant, or a library for several GPUs of which each gets a wheelhouse."""

    variant: Variant
    out: Path
    gpus: tuple[Capability, ...] = ()
    options: SourceOptions = SourceOptions()
