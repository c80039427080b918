"""Recompressed payloads, cached by content, each one proven before it is cached.

A file's name is a key: the hash of a stock payload and of all that decides the new payload. The file begins with the
pair digest, the SHA-256 of key and new payload, which is written only after the new payload was unpacked and compared
with the stock one. A pair digest computed again from a stock payload and the bytes of an output therefore shows that
this very pair was proven; damage to either of them, to the file or to its name gives another digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from torchtailor.code.binary.source import Bytes, ByteSource
from torchtailor.code.gpucode.fatbin import ALIGNMENT, Compression, Image, decompress_payload
from torchtailor.core.disk import write_atomically
from torchtailor.core.errors import BadInputError, CheckFailedError

_FORMAT = 2  # change it when the same key would give other bytes
_HEAD = Struct("<32sQ")  # pair digest, bytes of payload


def pair_digest(key: bytes, payload: Bytes) -> bytes:
    """The digest of a new payload together with the key of the stock payload it was made from."""
    digest = hashlib.sha256(key)
    digest.update(payload)
    return digest.digest()


class StockPayloads:
    """The keys of a library's images, by what is stored: each payload is read and hashed once."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._digests: dict[tuple[int, int], bytes] = {}

    def read(self, image: Image) -> Bytes:
        return self._source.read(image.payload_offset, image.payload_size)

    def header(self, image: Image) -> Bytes:
        return self._source.read(image.offset, image.header_size)

    def key(self, image: Image, level: int) -> bytes:
        place = (image.payload_offset, image.payload_size)
        if place not in self._digests:
            self._digests[place] = hashlib.sha256(self.read(image)).digest()
        return key_of(self._digests[place], image, level)


def key_of(digest: bytes, image: Image, level: int) -> bytes:
    """The key of a payload with this SHA-256; another zstd may give other bytes, so its version counts."""
    import zstandard

    facts = f" {_FORMAT} {image.compression.value} {image.raw_size} {level} {zstandard.ZSTD_VERSION}"
    return hashlib.sha256(digest + facts.encode()).digest()


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A payload in the cache; it stays on disk until it is written into an output."""

    key: bytes
    digest: bytes
    size: int
    path: str

    @property
    def padded_size(self) -> int:
        return -(-self.size // ALIGNMENT) * ALIGNMENT

    def read(self) -> bytes:
        """The payload as it is on disk; `damaged` says whether that is still what was proven."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, self.size, _HEAD.size)
        finally:
            os.close(fd)

    @property
    def damaged(self) -> bool:
        return pair_digest(self.key, self.read()) != self.digest


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is written in place of an image: its header with new sizes, and a payload from the cache."""

    header: bytes
    stored: StoredPayload

    @property
    def size(self) -> int:
        return len(self.header) + self.stored.padded_size

    def read(self) -> bytes:
        return self.header + self.stored.read().ljust(self.stored.padded_size, b"\0")


@dataclass(frozen=True, slots=True)
class ProvenImages:
    """For the proof: which pairs of stock and new payload were found to be the same code."""

    stock: StockPayloads
    level: int
    digests: Mapping[bytes, bytes]  # pair digests by key

    def same_code(self, old: Image, output: ByteSource, new: Image) -> bool:
        """Whether the payload in the output was once proven to be the code of this stock image."""
        key = self.stock.key(old, self.level)
        known = self.digests.get(key)
        return known is not None and pair_digest(key, output.read(new.payload_offset, new.payload_size)) == known


class ImageCache:
    """Files named by key; an incomplete one is ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def find(self, key: bytes) -> StoredPayload | None:
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                head, size = os.read(fd, _HEAD.size), os.fstat(fd).st_size
                with suppress(OSError):
                    os.utime(fd)  # it is in use: `cache prune` goes by that
            finally:
                os.close(fd)
        except OSError:
            return None
        if len(head) < _HEAD.size:
            return None
        digest, payload_size = _HEAD.unpack(head)
        return StoredPayload(key, digest, payload_size, path) if size == _HEAD.size + payload_size else None

    def put(self, key: bytes, payload: bytes, raw: bytes) -> StoredPayload:
        """Cache a zstd payload, if it unpacks to `raw`."""
        if not _unpacks_to(payload, raw):
            raise CheckFailedError("A recompressed image is not the stock one after decompression.")
        stored = StoredPayload(key, pair_digest(key, payload), len(payload), self._path(key))
        path = Path(stored.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _HEAD.pack(stored.digest, stored.size) + payload)
        return stored

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._folder}/{name[:2]}/{name}"


def _unpacks_to(payload: bytes, raw: bytes) -> bool:
    try:
        return decompress_payload(payload, Compression.ZSTD, len(raw)) == raw
    except BadInputError:
        return False
