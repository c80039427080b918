"""Which libraries are cut only with --nvidia: NVIDIA's proprietary ones (docs/licences.md)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from torchtailor.licences.makers import maker_of
from torchtailor.wheels.metadata import Metadata

_LONGEST_NAME = 200  # characters; longer is the licence's text


@dataclass(frozen=True, slots=True)
class _Rules:
    nvidia_packages: tuple[str, ...]
    nvidia_licence: str
    open_licences: tuple[str, ...]
    closed_words: tuple[str, ...]
    open_classifier: str
    closed_classifier: str

    def is_nvidias(self, metadata: Metadata) -> bool:
        return metadata.name.startswith(self.nvidia_packages) or self.nvidia_licence in metadata.licence.lower()

    def is_open(self, metadata: Metadata) -> bool:
        """Whether the package declares an open licence: by name, or by classifier where the name is not given.

        Some packages put the whole text of their licence into the field, where NVIDIA is named as the author.
        """
        if not metadata.licence.strip() or len(metadata.licence) > _LONGEST_NAME:
            kinds = metadata.classifiers
            closed = any(kind.startswith(self.closed_classifier) for kind in kinds)
            return not closed and any(kind.startswith(self.open_classifier) for kind in kinds)
        words = re.findall(r"[a-z]+", metadata.licence.lower())
        closed = any(word in self.closed_words for word in words)
        return not closed and any(word in self.open_licences for word in words)


def needs_nvidia_option(library: str, metadata: Metadata | None) -> bool:
    """Whether a library is NVIDIA's and proprietary; `metadata` is that of the package it came in, where there is one.

    The metadata of NVIDIA's packages names their licence, which holds for every library in them. In others (old torch
    wheels contain cuDNN), and where there is no package, the library's name decides.
    """
    if metadata and _rules().is_nvidias(metadata):
        return not _rules().is_open(metadata)
    name = PurePosixPath(library).name
    maker = maker_of(name)
    return maker is not None and not maker.licensed_openly(name)


def is_proprietary(metadata: Metadata) -> bool:
    """Whether a package is NVIDIA's and not under an open licence: its files are left out only with --nvidia."""
    return _rules().is_nvidias(metadata) and not _rules().is_open(metadata)


@cache
def _rules() -> _Rules:
    table = tomllib.loads(files("torchtailor.licences").joinpath("data/licences.toml").read_text("utf-8"))
    return _Rules(
        nvidia_packages=tuple(table["nvidia_packages"]),
        nvidia_licence=table["nvidia_licence"],
        open_licences=tuple(table["open_licences"]),
        closed_words=tuple(table["closed_words"]),
        open_classifier=table["open_classifier"],
        closed_classifier=table["closed_classifier"],
    )
