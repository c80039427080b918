"""Stores LZ4 and raw images as zstd, where that is smaller.

Finished work is cached by content (`image_cache.py`), so that the next variant that shares images compresses nothing.
LTO-IR is not recompressed: its users store its size elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import pack_into

from torchtailor.code.gpucode.fatbin import Compression, EntryFlag, Image, ImageKind, decompress_payload
from torchtailor.core.errors import BadInputError
from torchtailor.core.processes import core_slots
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.image_cache import ImageCache, ProvenImages, Replacement, StockPayloads, StoredPayload, key_of
from torchtailor.surgery.plan import KeptImages
from torchtailor.surgery.result import Recompressed

_STORAGE = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_ZSTD_FLAG = int(EntryFlag.ZSTD)
_KINDS = (ImageKind.PTX, ImageKind.CUBIN)
_SMALLEST = 256  # bytes of payload worth a try


@dataclass(frozen=True, slots=True)
class Recompression:
    """Replacements by the offset of the image, and the proven pairs that the proof may rely on."""

    new: Mapping[int, Replacement]
    proven: ProvenImages
    summary: Recompressed

    def drop_damaged(self) -> bool:
        """Delete cached payloads that are no longer what was proven; whether there were any."""
        damaged = [one.stored for one in self.new.values() if one.stored.damaged]
        for stored in damaged:
            Path(stored.path).unlink(missing_ok=True)  # images can share one
        return bool(damaged)


def recompress_images(stock: StockPayloads, keep: KeptImages, options: Cut) -> Recompression:
    """Recompress the images that get smaller."""
    images = [image for kept in keep.values() for image in kept if worth_a_try(image)]
    cache = ImageCache(options.image_cache_folder)
    keys = [stock.key(image, options.level) for image in images]
    stored: dict[bytes, StoredPayload] = {}
    missing: dict[bytes, Image] = {}
    for image, key in zip(images, keys, strict=True):
        if key in stored or key in missing:
            continue
        if found := cache.find(key):
            stored[key] = found
        else:
            missing[key] = image
    stored |= _compress_all(stock, missing, options, cache)
    new: dict[int, Replacement] = {}
    before = 0
    for image, key in zip(images, keys, strict=True):
        replacement = Replacement(_header(stock, image, stored[key]), stored[key])
        if replacement.size < image.stored_size:
            new[image.offset] = replacement
            before += image.stored_size
    after = sum(one.size for one in new.values())
    cached = sum(key not in missing for key in keys)
    proven = ProvenImages(stock, options.level, {one.stored.key: one.stored.digest for one in new.values()})
    return Recompression(new, proven, Recompressed(len(new), before, after, options.level, cached))


def worth_a_try(image: Image) -> bool:
    stored = image.compression in (Compression.NONE, Compression.LZ4)
    in_entry = not (image.bare or image.scrambled)
    return stored and image.kind in _KINDS and in_entry and image.payload_size >= _SMALLEST


def _compress_all(
    stock: StockPayloads, missing: Mapping[bytes, Image], options: Cut, cache: ImageCache
) -> dict[bytes, StoredPayload]:
    slots = core_slots(options.workers)
    futures: dict[bytes, Future[StoredPayload]] = {}
    # the compressor works outside of Python's lock, so threads use all cores
    with ThreadPoolExecutor(max_workers=options.workers) as pool:
        for key, image in missing.items():
            slots.acquire()
            futures[key] = pool.submit(_compress, stock, image, options.level, cache, key)
            futures[key].add_done_callback(lambda _: slots.release())
        return {key: future.result() for key, future in futures.items()}


def _compress(stock: StockPayloads, image: Image, level: int, cache: ImageCache, expected: bytes) -> StoredPayload:
    import zstandard

    payload = stock.read(image)
    if (
        key_of(hashlib.sha256(payload).digest(), image, level) != expected
    ):  # or the cache would hold the code of another image
        raise BadInputError("The file changed while it was read.", "Try again.")
    raw = decompress_payload(payload, image.compression, image.raw_size)
    return cache.put(expected, zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw), raw)


def _header(stock: StockPayloads, image: Image, stored: StoredPayload) -> bytes:
    """The old header with the new sizes and flag."""
    header = bytearray(stock.header(image))
    pack_into("<QI", header, 8, stored.padded_size, stored.size)
    pack_into("<Q", header, 40, image.flags & ~_STORAGE | _ZSTD_FLAG)
    pack_into("<Q", header, 56, image.raw_size)
    return bytes(header)
