"""Which libraries are cut only with --nvidia: NVIDIA's proprietary ones (docs/licences.md)."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePosixPath

from torchtailor.catalog.makers import maker_of
from torchtailor.core.tables import read_table
from torchtailor.trees.wheels.metadata import Metadata

_log = logging.getLogger(__name__)
_NVIDIA = re.compile(r"\bnvidia\b", re.IGNORECASE)
_LONGEST_NAME = 200  # characters; longer is the licence's text


@dataclass(frozen=True, slots=True)
class _Rules:
    nvidia_packages: tuple[str, ...]
    nvidia_licence: str
    open_licences: tuple[str, ...]
    closed_words: tuple[str, ...]
    open_classifier: str
    closed_classifier: str
    closed_texts: tuple[str, ...]
    misclassified: tuple[str, ...]

    def is_nvidias(self, metadata: Metadata) -> bool:
        return metadata.name.startswith(self.nvidia_packages) or self.nvidia_licence in metadata.licence.lower()

    def is_closed_text(self, text: str) -> bool:
        """Whether the beginning of a licence is that of a proprietary one."""
        words = " ".join(text.lower().split())
        return any(phrase in words for phrase in self.closed_texts)

    def is_closed(self, metadata: Metadata) -> bool:
        """Whether anything in the package speaks of a proprietary licence, whatever else it declares."""
        named = self._words(metadata) if len(metadata.licence) <= _LONGEST_NAME else []
        classified = any(kind.startswith(self.closed_classifier) for kind in metadata.classifiers)
        return (
            any(word in self.closed_words for word in named)
            or (classified and not metadata.name.startswith(self.misclassified))
            or any(map(self.is_closed_text, (metadata.licence, *metadata.licence_heads)))
        )

    def is_open(self, metadata: Metadata) -> bool:
        """Whether the package declares an open licence: by name, or by classifier where the name is not given.

        Some packages put the whole text of their licence into the field, where NVIDIA is named as the author.
        """
        if not metadata.licence.strip() or len(metadata.licence) > _LONGEST_NAME:
            return any(kind.startswith(self.open_classifier) for kind in metadata.classifiers)
        return any(word in self.open_licences for word in self._words(metadata))

    def is_proprietary(self, metadata: Metadata) -> bool:
        if self.is_closed(metadata):
            return self.is_nvidias(metadata) or bool(_NVIDIA.search(metadata.author))
        return self.is_nvidias(metadata) and not self.is_open(metadata)

    @staticmethod
    def _words(metadata: Metadata) -> list[str]:
        return re.findall(r"[a-z]+", metadata.licence.lower())


def needs_nvidia_option(library: str, metadata: Metadata | None) -> bool:
    """Whether a library is NVIDIA's and proprietary; `metadata` is that of the package it came in, where there is one.

    The metadata and the licence files of NVIDIA's packages name their licence, which holds for every library in them.
    In others (old torch wheels contain cuDNN), and where there is no package, the library's name decides.
    """
    name = PurePosixPath(library).name
    if metadata and (_rules().is_nvidias(metadata) or is_proprietary(metadata)):
        needed = is_proprietary(metadata)
        _log.debug("%s: the licence of its package %s is %s", name, metadata.name, "closed" if needed else "open")
        return needed
    maker = maker_of(name)
    needed = maker is not None and not maker.licensed_openly(name)
    _log.debug("%s: its name says %s", name, "NVIDIA's and closed" if needed else "nothing against a cut")
    return needed


@lru_cache(maxsize=1024)  # asked for each of ten thousand files; the texts of licences are long
def is_proprietary(metadata: Metadata) -> bool:
    """Whether a package is NVIDIA's and not under an open licence: its files are left out only with --nvidia."""
    return _rules().is_proprietary(metadata)


def is_closed_text(text: str) -> bool:
    """Whether a licence file that begins like this is a proprietary licence of NVIDIA's."""
    return _rules().is_closed_text(text)


@cache
def _rules() -> _Rules:
    return read_table("catalog", "licences.toml", _Rules)
