"""Copies the torch of a Python with its CUDA packages: exactly the files in their RECORDs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchtailor.trees.artifact.installed import InstalledDistribution, installed_in

_OURS = re.compile(r"torch|triton|(?:nvidia|cuda)-.+")


def site_of(prefix: Path) -> Path:
    """The site-packages of a copy, deep enough for `../../../bin` in RECORD."""
    return prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def copy_stock(source: Path, prefix: Path) -> tuple[str, ...]:
    """Copy torch and its CUDA libraries out of a site-packages folder; returns the names of the distributions."""
    target = site_of(prefix)
    chosen = with_torch({one.metadata.name: one for one in installed_in(source)})
    for one in chosen:
        for row in one.record:
            here, there = (Path(os.path.normpath(site / row.path)) for site in (source, target))
            if not there.is_relative_to(prefix):
                raise ValueError(f"{one.dist_info.name}: RECORD names {row.path}, which the copy has no place for")
            if here.suffix == ".pyc" and not here.exists():
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, there)
    return tuple(one.metadata.name for one in chosen)


def with_torch(installed: dict[str, InstalledDistribution]) -> tuple[InstalledDistribution, ...]:
    """torch and the CUDA packages it requires, directly or indirectly; nvidia-ml-py and others are not included."""
    waiting, found = ["torch"], {}
    while waiting:
        name = waiting.pop()
        if name in found or name not in installed or not _OURS.fullmatch(name):
            continue
        found[name] = installed[name]
        waiting += [canonicalize_name(Requirement(text).name) for text in installed[name].metadata.requires]
    return tuple(found[name] for name in sorted(found))
