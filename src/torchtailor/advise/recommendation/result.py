"""What a recommendation consists of: plain values that print as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pick:
    """A variant that runs, how it is built, and why it is listed."""

    variant: str  # the unique name
    name: str  # the name without the PyTorch version
    short_name: str
    release: str
    pytorch: str
    cuda: str | None
    build: str
    python: str
    method: str
    isa: str
    gpu: str | None
    gpus: tuple[int, ...]  # the indices of the GPUs it is for
    code: str | None  # the GPU code that runs
    fit: str
    driver: str | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejection:
    """What was not chosen, and the reason against it."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Something better that one change makes possible."""

    needs: str  # `driver 580.65.06`, `JetPack 7.2`, `Python 3.14`
    variant: str
    text: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """What can be done where nothing fits."""

    kind: str
    text: str
    variant: str | None = None
    toml: str | None = None  # what to add to torchtailor.toml


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best variant for a machine, what else runs, what does not and why, and what could be changed."""

    machine: str
    workload: str
    python: str
    best: Pick | None
    per_gpu: tuple[Pick, ...]
    other_variants: tuple[Pick, ...]
    rejected: tuple[Rejection, ...]
    upgrades: tuple[Upgrade, ...]
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]
    compiling: str | None = None  # what a build from source brings over the official wheel
    command: str | None = None  # what makes and installs the best
    stock_command: str | None = None  # what installs the official wheel uncut, where the best is cut from one
