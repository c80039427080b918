"""Compares the GPU code of a library with that of its stock: is everything there that the GPUs use?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.binary.source import ByteSource, open_source
from torchtailor.errors import BadInputError
from torchtailor.gpucode.fatbin import Image, decompress
from torchtailor.gpucode.kernels import names_in_cubin
from torchtailor.gpucode.runnable import DriverReading, used_images
from torchtailor.gpucode.scan import LibraryCode, scan_source


@dataclass(frozen=True, slots=True)
class CodeCoverage:
    """How many of stock's images the GPUs use, and how many of them the artifact lacks."""

    library: str
    needed: int
    lost: int
    lost_kernels: tuple[str, ...]


def compare_code(name: str, stock: Path, artifact: Path, readings: Sequence[DriverReading]) -> CodeCoverage | None:
    """Compare by content; without a GPU every image of stock counts. None where the GPUs use nothing of stock."""
    with open_source(stock) as before, open_source(artifact) as after:
        old, new = scan_source(before), scan_source(after)
        wanted = _used(old, readings)
        if not wanted:
            return None
        there = _used(new, readings)
        lost = _missing(before, wanted, after, there)
        if not lost:
            return CodeCoverage(name, len(wanted), 0, ())
        gone = _kernels(before, lost) - _kernels(after, there)
        return CodeCoverage(name, len(wanted), len(lost), tuple(sorted(gone)))


def _used(code: LibraryCode, readings: Sequence[DriverReading]) -> list[Image]:
    """The images that the GPUs use, those of a JIT link included."""
    if not readings:
        return list(code.images)
    return [image for images in used_images(code.containers, readings) for image in images]


def _missing(before: ByteSource, wanted: list[Image], after: ByteSource, there: list[Image]) -> list[Image]:
    """Those of the wanted images whose content is not there; as stored first, which is cheap, then unpacked."""
    stored = Counter((image.label, _stored(after, image)) for image in there)
    rest = []
    for image in wanted:
        key = (image.label, _stored(before, image))
        if stored[key]:
            stored[key] -= 1
        else:
            rest.append(image)
    if not rest:
        return []
    labels = {image.label for image in rest}
    raw = Counter((image.label, _raw(after, image)) for image in there if image.label in labels)
    lost = []
    for image in rest:
        key = (image.label, _raw(before, image))
        if raw[key]:
            raw[key] -= 1
        else:
            lost.append(image)
    return lost


def _stored(source: ByteSource, image: Image) -> bytes:
    return hashlib.blake2b(source.read(image.payload_offset, image.payload_size), digest_size=20).digest()


def _raw(source: ByteSource, image: Image) -> bytes:
    try:
        return hashlib.blake2b(decompress(source, image), digest_size=20).digest()
    except BadInputError:
        return _stored(source, image)


def _kernels(source: ByteSource, images: list[Image]) -> set[str]:
    names: set[str] = set()
    for image in images:
        try:
            names |= names_in_cubin(decompress(source, image)) or frozenset()
        except BadInputError:
            continue
    return names
