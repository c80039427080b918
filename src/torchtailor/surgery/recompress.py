"""Stores LZ4 and raw images anew as zstd: only where that is smaller and the driver can read it.

Finished work is kept by content (`image_cache.py`), so that the next variant that shares images compresses nothing.
LTO-IR is left alone: its users note its size elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import pack_into
from threading import Semaphore
from typing import Protocol

from torchtailor.disk import cache_folder
from torchtailor.errors import BadInputError, ImpossibleError
from torchtailor.gpucode.fatbin import Compression, EntryFlag, Image, ImageKind, decompress_payload
from torchtailor.surgery.image_cache import ImageCache, ProvenImages, Replacement, StockPayloads, Stored, key_of
from torchtailor.surgery.plan import Keep
from torchtailor.surgery.result import Recompressed

FIRST_DRIVER = (550, 54)  # the driver of CUDA 12.4, the first that reads zstd entries
_STORAGE = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_ZSTD_FLAG = int(EntryFlag.ZSTD)
_KINDS = (ImageKind.PTX, ImageKind.CUBIN)
_SMALLEST = 256  # bytes of payload worth a try


@dataclass(frozen=True, slots=True)
class Recompress:
    """How to store images anew: zstd at `level`, with finished work kept in `cache`.

    `driver` is the oldest driver the output must run on, such as "550.54"; None means one that can read zstd.
    `cache=None` means the one in the cache folder.
    """

    level: int = 19
    driver: str | None = None
    cache: Path | None = None
    processes: int = 2

    def check(self) -> None:
        """Refuse a driver that could not read the result."""
        if self.driver is None:
            return
        numbers = tuple(int(part) for part in self.driver.split(".")[:2] if part.isdigit())
        if numbers < FIRST_DRIVER:
            raise ImpossibleError(
                f"recompressed code needs driver 550.54 or newer, and the target has {self.driver}",
                "leave out --recompress, or raise the driver floor",
            )

    @property
    def folder(self) -> Path:
        return self.cache or cache_folder() / "images"


class Slots(Protocol):
    """Who holds one may compress; there are as many as cores to use."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


_shared: list[Slots] = []


def share_slots(slots: Slots) -> None:
    """In a worker process: take turns with the others, so that together they keep all cores busy and no more."""
    _shared[:] = [slots]


@dataclass(frozen=True, slots=True)
class Recompression:
    """What recompression gives: replacements by the offset of the image, and what the proof may build on."""

    new: Mapping[int, Replacement]
    proven: ProvenImages
    summary: Recompressed

    def drop_damaged(self) -> bool:
        """Throw away what is no longer what was proven; whether there was any."""
        damaged = [one.stored for one in self.new.values() if one.stored.damaged]
        for stored in damaged:
            Path(stored.path).unlink(missing_ok=True)  # images can share one
        return bool(damaged)


def recompress_images(stock: StockPayloads, keep: Keep, how: Recompress) -> Recompression:
    """Store anew the images that get smaller."""
    how.check()
    images = [image for kept in keep.values() for image in kept if _worth_a_try(image)]
    cache = ImageCache(how.folder)
    keys = [stock.key(image, how.level) for image in images]
    stored: dict[bytes, Stored] = {}
    missing: dict[bytes, Image] = {}
    for image, key in zip(images, keys, strict=True):
        if key in stored or key in missing:
            continue
        if found := cache.find(key):
            stored[key] = found
        else:
            missing[key] = image
    stored |= _compress_all(stock, missing, how, cache)
    new: dict[int, Replacement] = {}
    before = 0
    for image, key in zip(images, keys, strict=True):
        replacement = Replacement(_header(stock, image, stored[key]), stored[key])
        if replacement.size < image.stored_size:
            new[image.offset] = replacement
            before += image.stored_size
    after = sum(one.size for one in new.values())
    cached = sum(key not in missing for key in keys)
    proven = ProvenImages(stock, how.level, {one.stored.key: one.stored.seal for one in new.values()})
    return Recompression(new, proven, Recompressed(len(new), before, after, how.level, cached))


def _worth_a_try(image: Image) -> bool:
    stored = image.compression in (Compression.NONE, Compression.LZ4)
    return stored and image.kind in _KINDS and not image.scrambled and image.payload_size >= _SMALLEST


def _compress_all(
    stock: StockPayloads, missing: Mapping[bytes, Image], how: Recompress, cache: ImageCache
) -> dict[bytes, Stored]:
    slots = _shared[0] if _shared else Semaphore(max(1, how.processes))
    futures: dict[bytes, Future[Stored]] = {}
    # the compressor works outside of Python's lock, so threads use all cores
    with ThreadPoolExecutor(max_workers=max(1, how.processes)) as pool:
        for key, image in missing.items():
            slots.acquire()
            futures[key] = pool.submit(_compress, stock, image, how.level, cache, key)
            futures[key].add_done_callback(lambda _: slots.release())
        return {key: future.result() for key, future in futures.items()}


def _compress(stock: StockPayloads, image: Image, level: int, cache: ImageCache, expected: bytes) -> Stored:
    import zstandard

    payload = stock.read(image)
    if key_of(hashlib.sha256(payload).digest(), image, level) != expected:  # or the cache would hold a lie
        raise BadInputError("The file changed while it was read.", "try again")
    raw = decompress_payload(payload, image.compression, image.raw_size)
    return cache.put(expected, zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw), raw)


def _header(stock: StockPayloads, image: Image, stored: Stored) -> bytes:
    """The old header with the new sizes and flag."""
    header = bytearray(stock.header(image))
    pack_into("<QI", header, 8, stored.padded_size, stored.size)
    pack_into("<Q", header, 40, image.flags & ~_STORAGE | _ZSTD_FLAG)
    pack_into("<Q", header, 56, image.raw_size)
    return bytes(header)
