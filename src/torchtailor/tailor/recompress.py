"""Stores LZ4 and raw images anew as zstd: only where that is smaller and the driver can read it.

Work is kept by content, so that the next variant that shares images pays nothing: the key is the SHA-256 of the
payload as it was stored, how it was stored, and the level. LTO-IR is left alone: its users note its size elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import pack_into

from torchtailor.errors import ImpossibleError
from torchtailor.gpucode.fatbin import ALIGNMENT, Compression, EntryFlag, Image, ImageKind, decompress_payload
from torchtailor.gpucode.source import Source
from torchtailor.tailor.plan import Keep
from torchtailor.tailor.result import Recompressed

FIRST_DRIVER = (550, 54)  # the driver of CUDA 12.4, the first that reads zstd entries
_FORMAT = 1  # change it when the same key would give other bytes
_STORAGE = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_ZSTD_FLAG = int(EntryFlag.ZSTD)
_KINDS = (ImageKind.PTX, ImageKind.CUBIN)
_DIGEST = 32  # bytes of SHA-256 before the payload in a file of the cache
_SMALLEST = 256  # bytes of payload worth a try


@dataclass(frozen=True, slots=True)
class Recompress:
    """How to store images anew: zstd at `level`, with finished work kept in `cache`.

    `driver` is the oldest driver the output must run on, such as "550.54"; None means one that can read zstd.
    `cache=None` means the user's cache folder.
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
        if self.cache is not None:
            return self.cache
        import platformdirs

        return Path(platformdirs.user_cache_dir("torchtailor")) / "images"


def recompress_images(source: Source, keep: Keep, how: Recompress) -> tuple[dict[int, bytes], Recompressed]:
    """New bytes (header and payload) for the images that get smaller, by the offset of the image."""
    how.check()
    images = [image for kept in keep.values() for image in kept if _worth_a_try(image)]
    cache = _Cache(how.folder)
    new: dict[int, bytes] = {}
    before = cached = 0
    # the compressor works outside of Python's lock, so threads use all cores and share what they read
    with ThreadPoolExecutor(max_workers=max(1, how.processes)) as pool:
        jobs: dict[str, Future[tuple[bytes, bool]]] = {}
        keys = pool.map(lambda image: _key(source, image, how.level), images)
        names = []
        for image, key in zip(images, keys, strict=True):
            names.append(key)
            if key not in jobs:
                jobs[key] = pool.submit(_compressed, source, image, how.level, cache, key)
        for image, key in zip(images, names, strict=True):
            payload, was_cached = jobs[key].result()
            cached += was_cached
            entry = _entry(source, image, payload)
            if len(entry) < image.stored_size:
                new[image.offset] = entry
                before += image.stored_size
    after = sum(map(len, new.values()))
    return new, Recompressed(len(new), before, after, how.level, cached)


def _worth_a_try(image: Image) -> bool:
    stored = image.compression in (Compression.NONE, Compression.LZ4)
    return stored and image.kind in _KINDS and not image.scrambled and image.payload_size >= _SMALLEST


def _key(source: Source, image: Image, level: int) -> str:
    digest = hashlib.sha256(source.read(image.payload_offset, image.payload_size))
    digest.update(f"{_FORMAT} {image.compression.value} {image.raw_size} {level}".encode())
    return digest.hexdigest()


def _compressed(source: Source, image: Image, level: int, cache: _Cache, key: str) -> tuple[bytes, bool]:
    """The payload as zstd, and whether it was done before."""
    payload = cache.get(key)
    if payload is not None:
        return payload, True
    import zstandard

    stored = source.read(image.payload_offset, image.payload_size)
    raw = decompress_payload(stored, image.compression, image.raw_size)
    payload = zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw)
    cache.put(key, payload)
    return payload, False


def _entry(source: Source, image: Image, payload: bytes) -> bytes:
    """A whole entry: the old header with the new sizes and flag, and the padded payload."""
    header = bytearray(source.read(image.offset, image.header_size))
    padded = -(-len(payload) // ALIGNMENT) * ALIGNMENT
    pack_into("<QI", header, 8, padded, len(payload))
    pack_into("<Q", header, 40, image.flags & ~_STORAGE | _ZSTD_FLAG)
    pack_into("<Q", header, 56, image.raw_size)
    return bytes(header) + payload.ljust(padded, b"\0")


class _Cache:
    """Finished payloads in files named by key; a damaged file counts as none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, payload = data[:_DIGEST], data[_DIGEST:]
        return payload if hashlib.sha256(payload).digest() == digest else None

    def put(self, key: str, payload: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key
