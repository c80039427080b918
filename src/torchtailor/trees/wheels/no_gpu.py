"""Which requirements of a package leave with its GPU code: a machine without a GPU needs none of NVIDIA's libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchtailor.core.tables import read_table

_CUDA_SUFFIX = re.compile(r"-cu\d+$")


@dataclass(frozen=True, slots=True)
class _Rules:
    libraries: frozenset[str]
    sonames: tuple[str, ...]
    unused_by: Mapping[str, frozenset[str]]  # by the package that requires them
    extras: Mapping[str, frozenset[str]]


def is_gpu_package(project: str) -> bool:
    """Whether a package is of no use without a GPU, and the libraries that need it get stand-ins."""
    name = canonicalize_name(project)
    rules = _rules()
    return _CUDA_SUFFIX.sub("", name) in rules.libraries or any(name in names for names in rules.unused_by.values())


def is_gpu_library(path: str) -> bool:
    """Whether a file is a copy of one of these packages' libraries, by its name."""
    name = path.rpartition("/")[2]
    return ".so" in name and name.startswith(_rules().sonames)


def required_name(stated: str) -> str:
    """The package that a requirement names; empty where it cannot be read."""
    try:
        return canonicalize_name(Requirement(stated).name)
    except InvalidRequirement:
        return ""


def requirement_without_gpu(owner: str, requirement: Requirement) -> Requirement | None:
    """What is left of a requirement of the package `owner` on machines without a GPU; None where nothing is."""
    name = canonicalize_name(requirement.name)
    rules = _rules()
    if _CUDA_SUFFIX.sub("", name) in rules.libraries or name in rules.unused_by.get(canonicalize_name(owner), ()):
        return None
    kept = rules.extras.get(name)
    if kept is None or requirement.extras <= kept:
        return requirement
    if not requirement.extras & kept:
        return None
    changed = Requirement(str(requirement))
    changed.extras &= kept
    return changed


def stated_without_gpu(owner: str, stated: str) -> str | None:
    """The same for a requirement as METADATA states it; one that does not change, or cannot be read, stays as it is."""
    try:
        requirement = Requirement(stated)
    except InvalidRequirement:
        return stated
    left = requirement_without_gpu(owner, requirement)
    if left is requirement:
        return stated
    return str(left) if left else None


@cache
def _rules() -> _Rules:
    return read_table("trees.wheels", "no_gpu.toml", _Rules)
