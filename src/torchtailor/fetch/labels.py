"""What the local version of a wheel says: which build of PyTorch it belongs to, and whether torchtailor made it."""

from __future__ import annotations

import re

from packaging.version import Version

from torchtailor.trees.wheels.name import OWN_LABEL

_BUILD = re.compile(r"cpu|cu\d+|rocm\d*|xpu")


def build_label_of(version: Version) -> str:
    """`2.8.0+cu128.sm90` -> `cu128`; empty where it does not say."""
    first = _parts(version)[0]
    return first if _BUILD.fullmatch(first) else ""


def is_official(version: Version) -> bool:
    """Whether it lacks the labels of torchtailor's own wheels, such as `2.8.0+cu128.sm90`, which fit one machine."""
    return not any(OWN_LABEL.fullmatch(part) for part in _parts(version))


def match_of(version: Version, label: str) -> int | None:
    """How well it fits a torch of this build: 2 the same, 1 it does not say, 0 the same major CUDA, None not at all."""
    own = build_label_of(version)
    if not own:
        return 1
    if own == label:
        return 2
    same = own.startswith("cu") and label.startswith("cu") and own[2:4] == label[2:4]
    return 0 if same else None


def _parts(version: Version) -> list[str]:
    return (version.local or "").split(".")
