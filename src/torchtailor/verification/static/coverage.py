"""Compares the GPU code of a library with that of its stock: is everything there that the GPUs use?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.code.binary.source import ByteSource, open_source
from torchtailor.code.gpucode.fatbin import Image, decompress
from torchtailor.code.gpucode.kernels import names_in_cubin
from torchtailor.code.gpucode.runnable import DriverReading, used_images
from torchtailor.code.gpucode.scan import FoundContainer, scan_source
from torchtailor.core.errors import BadInputError
from torchtailor.verification.static.packed import OpenPacks


@dataclass(frozen=True, slots=True)
class CodeCoverage:
    """How many of stock's images the GPUs use, and how many of them the artifact lacks."""

    library: str
    needed: int
    lost: int
    lost_kernels: tuple[str, ...]


# An image, and the file that it is in: the library, or a pack.
_Placed = tuple[ByteSource, Image]


def compare_code(
    name: str, stock: Path, artifact: Path, readings: Sequence[DriverReading], packs: Sequence[Path] = ()
) -> CodeCoverage | None:
    """Compare by content; without a GPU every image of stock counts. None where the GPUs use nothing of stock.

    What was moved to one of the `packs` counts as there.
    """
    with open_source(stock) as before, open_source(artifact) as after, OpenPacks.of(packs) as opened:
        old, new = scan_source(before), scan_source(after)
        wanted = _used([(found, before) for found in old.containers], readings)
        if not wanted:
            return None
        there = _used(opened.code(new, after)[0], readings)
        lost = _missing(wanted, there)
        if not lost:
            return CodeCoverage(name, len(wanted), 0, ())
        gone = _kernels(lost) - _kernels(there)
        return CodeCoverage(name, len(wanted), len(lost), tuple(sorted(gone)))


def _used(containers: Sequence[tuple[FoundContainer, ByteSource]], readings: Sequence[DriverReading]) -> list[_Placed]:
    """The images that the GPUs use, those of a JIT link included."""
    if not readings:
        return [(source, image) for found, source in containers for image in found.images]
    used = used_images([found for found, _ in containers], readings)
    return [(source, image) for (_, source), images in zip(containers, used, strict=True) for image in images]


def _missing(wanted: list[_Placed], there: list[_Placed]) -> list[_Placed]:
    """Those of the wanted images whose content is not there; as stored first, which is cheap, then unpacked."""
    rest, unused = _unmatched(wanted, there, _stored)
    labels = {image.label for _, image in rest}
    return _unmatched(rest, [(after, image) for after, image in unused if image.label in labels], _raw)[0]


def _unmatched(
    wanted: list[_Placed], there: list[_Placed], content: Callable[[ByteSource, Image], bytes]
) -> tuple[list[_Placed], list[_Placed]]:
    """Those of the wanted images that have no partner of the same content, and those there that are nobody's."""
    free: dict[tuple[str, bytes], list[_Placed]] = {}
    for after, image in there:
        free.setdefault((image.label, content(after, image)), []).append((after, image))
    lost = []
    for before, image in wanted:
        partners = free.get((image.label, content(before, image)))
        if partners:
            partners.pop()
        else:
            lost.append((before, image))
    return lost, [placed for partners in free.values() for placed in partners]


def _stored(source: ByteSource, image: Image) -> bytes:
    return hashlib.blake2b(source.read(image.payload_offset, image.payload_size), digest_size=20).digest()


def _raw(source: ByteSource, image: Image) -> bytes:
    try:
        return hashlib.blake2b(decompress(source, image), digest_size=20).digest()
    except BadInputError:
        return _stored(source, image)


def _kernels(images: list[_Placed]) -> set[str]:
    names: set[str] = set()
    for source, image in images:
        try:
            names |= names_in_cubin(decompress(source, image)) or frozenset()
        except BadInputError:
            continue
    return names
