"""Packs: files of containers and pages that were moved out of libraries, found by key.

A pack is a header, the rows of its index sorted by key, a description as JSON, and whole containers. A key is the hash
of the container as the stock library has it, so that the same ticket finds the code of whichever GPU a pack is for.
A segment of pages is found by the hash of its bytes. It has a header of its own, and behind it either the bytes as they
are mapped, aligned to the largest pages there are, or an index of blocks and each of them as zstd: one is unpacked when
the first of its pages is needed. What of a block stays in the library is zeros in it.
The hook (`native/packs.c`, `native/pages.c`) reads the same format.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torchtailor.code.binary.source import ByteSource, blamed_on, open_source
from torchtailor.code.gpucode.fatbin import CONTAINER_HEADER, Container, read_container
from torchtailor.core.disk import new_file, write_at
from torchtailor.core.errors import BadInputError
from torchtailor.core.trust import Limit

PACK_FOLDER = "torchtailor-packs"
PACK_SUFFIX = ".ttpack"
PACK_VARIABLE = "TORCHTAILOR_PACK"  # where packs are, besides beside the libraries
KEY_SIZE = 16

_MAGIC = b"TTPACK\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQIIII")
_CHECKED = _HEADER.size - 4  # the last field is the checksum of what comes before
_ROW = struct.Struct(f"<{KEY_SIZE}sQQII")
_ALIGNMENT = 64
_CHUNK = 1 << 20
_MAX_ROWS = 1 << 22

PAGES_HEADER = struct.Struct(f"<8s{KEY_SIZE}sQIII16xI")  # magic, key, bytes, those of a block, blocks, checksum
_PAGES_MAGIC = b"TTPAGES\0"
_BLOCK = struct.Struct("<QII")  # of the index: where a block is from the header on, its bytes, the checksum unpacked
_PAGES_ALIGNMENT = 64 << 10
PAGE_BLOCK = 1 << 20


@dataclass(frozen=True)
class PackPlace:
    """Where the pack of a library goes, and where the library looks for the hook."""

    folder: Path | None  # None: the pack is made for the proof alone
    hook: str = ""  # the path from the library's folder to the hook's; empty where it lies beside it


class RowKind(IntEnum):
    """What a row of a pack leads to."""

    CONTAINER = 0
    PAGES = 1


class PackRow(NamedTuple):
    """Where a container, or the pages of a segment, lie in a pack."""

    key: bytes
    offset: int
    size: int
    crc: int
    kind: RowKind = RowKind.CONTAINER


def container_key(source: ByteSource, container: Container) -> bytes:
    """The key of a container: the hash of its bytes, header included."""
    return hashed(_chunks(source, container.offset, container.end))


def hashed(chunks: Iterable[bytes]) -> bytes:
    """The key of these bytes."""
    hasher = hashlib.blake2b(digest_size=KEY_SIZE)
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.digest()


def _chunks(source: ByteSource, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _CHUNK):
        yield bytes(source.read(at, min(_CHUNK, end - at)))


class PackWriter:
    """Writes containers one after another to a file; `finish` adds the index in front."""

    def __init__(self, fd: int, count: int, description: Mapping[str, Any]) -> None:
        """`count` is how many containers will be added at most."""
        self._fd = fd
        self._description = json.dumps(description, sort_keys=True, separators=(",", ":")).encode()
        self._rows: dict[bytes, PackRow] = {}
        self._empty: tuple[int, int, int] | None = None
        self._end = _aligned(_HEADER.size + count * _ROW.size + len(self._description))

    def add(self, key: bytes, chunks: Iterable[bytes]) -> None:
        """Add a container; one that is there already is not written again."""
        if key in self._rows:
            return
        start, size, crc = self._end, 0, 0
        for chunk in chunks:
            size += write_at(self._fd, start + size, chunk)
            crc = zlib.crc32(chunk, crc)
        if size == CONTAINER_HEADER.size:  # containers without code are all the same: one serves for all
            self._empty = self._empty or (start, size, crc)
            start, size, crc = self._empty
        self._rows[key] = PackRow(key, start, size, crc)
        self._end = max(self._end, _aligned(start + size))

    def add_from(self, pack: Pack) -> None:
        """Add all that another pack has."""
        for row in pack.rows:
            self.add(row.key, _chunks(pack.source, row.offset, row.offset + row.size))

    def add_pages(self, key: bytes, size: int, chunks: Iterable[bytes]) -> None:
        """Add the bytes of a segment as they are mapped."""
        if key in self._rows:
            return
        start = -(-(self._end + PAGES_HEADER.size) // _PAGES_ALIGNMENT) * _PAGES_ALIGNMENT - PAGES_HEADER.size
        self._put(key, start, chain([_pages_header(key, size)], chunks))

    def add_packed_pages(self, key: bytes, size: int, blocks: Iterable[bytes], level: int) -> None:
        """Add the bytes of a segment, compressed block by block; each block has `PAGE_BLOCK` bytes but the last."""
        from zstandard import ZstdCompressor

        if key in self._rows:
            return
        compressor = ZstdCompressor(level=level, write_content_size=True)
        rows, stored = [], []
        count = -(-size // PAGE_BLOCK)
        at = PAGES_HEADER.size + count * _BLOCK.size
        for block in blocks:
            data = compressor.compress(block)
            rows.append(_BLOCK.pack(at, len(data), zlib.crc32(block)))
            stored.append(data)
            at += len(data)
        index = b"".join(rows)
        header = _pages_header(key, size, PAGE_BLOCK, count, zlib.crc32(index))
        self._put(key, self._end, [header, index, *stored])

    def _put(self, key: bytes, start: int, chunks: Iterable[bytes]) -> None:
        size = crc = 0
        for chunk in chunks:
            if chunk.strip(b"\0"):  # zeros take no space on the disk
                write_at(self._fd, start + size, chunk)
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        self._rows[key] = PackRow(key, start, size, crc, RowKind.PAGES)
        self._end = _aligned(start + size)

    @property
    def count(self) -> int:
        return len(self._rows)

    def finish(self) -> int:
        """Write the index; returns the size of the file."""
        last = max((row.offset + row.size for row in self._rows.values()), default=0)
        rows = b"".join(_ROW.pack(*row) for _, row in sorted(self._rows.items()))
        at = _HEADER.size + len(rows)
        size = max(last, at + len(self._description))
        fields = (_MAGIC, _VERSION, len(self._rows), _HEADER.size, at, len(self._description), size)
        checks = (zlib.crc32(rows), zlib.crc32(self._description), 0)
        header = _HEADER.pack(*fields, *checks, 0)[:_CHECKED]
        write_at(self._fd, 0, header + struct.pack("<I", zlib.crc32(header)) + rows + self._description)
        os.ftruncate(self._fd, size)
        return size


def _pages_header(key: bytes, size: int, block: int = 0, count: int = 0, crc: int = 0) -> bytes:
    head = PAGES_HEADER.pack(_PAGES_MAGIC, key, size, block, count, crc, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@contextmanager
def new_pack(path: Path, count: int, description: Mapping[str, Any]) -> Iterator[PackWriter]:
    """A pack that gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, durable=True) as file:
        writer = PackWriter(file.fileno(), count, description)
        yield writer
        writer.finish()
        os.fchmod(file.fileno(), 0o644)


@dataclass(frozen=True)
class Pack:
    """An open pack."""

    source: ByteSource
    rows: tuple[PackRow, ...]
    description: Mapping[str, Any]
    _keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def read(cls, source: ByteSource) -> Pack:
        """Read the index of a pack; BadInputError where anything in it is not what it should be."""
        if source.size < _HEADER.size:
            raise _damaged("it is shorter than its header")
        head = bytes(source.read(0, _HEADER.size))
        magic, version, count, rows_at, about_at, about_size, size, rows_crc, about_crc, _, crc = _HEADER.unpack(head)
        if magic != _MAGIC:
            raise BadInputError("It is not a pack.", "Give a .ttpack file that torchtailor wrote.")
        if version != _VERSION:
            raise BadInputError(f"It is a pack of version {version}.", "Use the torchtailor that wrote it.")
        if zlib.crc32(head[:_CHECKED]) != crc:
            raise _damaged("the checksum of its header is wrong")
        if size != source.size:
            raise _damaged(f"it has {source.size} bytes and should have {size}")
        if count > _MAX_ROWS or about_size > Limit.MANIFEST or rows_at + count * _ROW.size > size:
            raise _damaged("its index is outside of the file")
        if about_at + about_size > size:
            raise _damaged("its description is outside of the file")
        data = bytes(source.read(rows_at, count * _ROW.size))
        about = bytes(source.read(about_at, about_size))
        if zlib.crc32(data) != rows_crc or zlib.crc32(about) != about_crc:
            raise _damaged("the checksum of its index is wrong")
        fields = list(_ROW.iter_unpack(data))
        if not {kind for *_, kind in fields} <= set(RowKind):
            raise _damaged("its index has rows of an unknown kind")
        rows = tuple(PackRow(key, offset, length, check, RowKind(kind)) for key, offset, length, check, kind in fields)
        keys = tuple(row.key for row in rows)
        if any(one >= other for one, other in pairwise(keys)):
            raise _damaged("its index is not sorted")
        if any(row.offset + row.size > size or row.offset % _ALIGNMENT for row in rows):
            raise _damaged("a container is outside of the file")
        try:
            description = json.loads(about)
        except (ValueError, RecursionError) as error:
            raise _damaged("its description is no JSON") from error
        return cls(source, rows, description if isinstance(description, dict) else {}, keys)

    def find(self, key: bytes) -> PackRow | None:
        index = bisect_left(self._keys, key)
        return self.rows[index] if index < len(self._keys) and self._keys[index] == key else None

    def check(self, row: PackRow) -> None:
        """Raise BadInputError where the bytes of a row are damaged."""
        crc = 0
        for chunk in _chunks(self.source, row.offset, row.offset + row.size):
            crc = zlib.crc32(chunk, crc)
        if crc != row.crc:
            what = "container" if row.kind is RowKind.CONTAINER else "segment"
            raise _damaged(f"the checksum of {what} {row.key.hex()[:12]} is wrong")

    def pages(self, row: PackRow) -> Iterator[bytes]:
        """The bytes of a segment; of a compressed one, those that stay in the library are zeros."""
        from zstandard import ZstdDecompressor, ZstdError, frame_content_size

        self.check(row)
        at = row.offset + PAGES_HEADER.size
        _, _, size, block, count, *_ = PAGES_HEADER.unpack(self.source.read(row.offset, PAGES_HEADER.size))
        if not count:
            yield from _chunks(self.source, at, at + size)
            return
        for offset, length, _ in _BLOCK.iter_unpack(self.source.read(at, count * _BLOCK.size)):
            stored = bytes(self.source.read(row.offset + offset, length))
            try:
                data = ZstdDecompressor().decompress(stored) if 0 <= frame_content_size(stored) <= block else b""
            except ZstdError as error:
                raise _damaged("a block cannot be unpacked") from error
            if len(data) != min(block, size):
                raise _damaged("a block has another size")
            yield data
            size -= len(data)

    def container(self, row: PackRow) -> Container:
        """The container of a row; BadInputError where its bytes are damaged."""
        self.check(row)
        container = read_container(self.source, row.offset, row.offset + row.size)
        if container.stored_size != row.size:
            raise _damaged(f"container {row.key.hex()[:12]} has another size than its row")
        return container

    @property
    def stored_size(self) -> int:
        """Bytes of all containers."""
        return sum(row.size for row in self.rows if row.kind is RowKind.CONTAINER)

    @property
    def pages_size(self) -> int:
        """Bytes of all segments, as they are stored."""
        return sum(row.size for row in self.rows if row.kind is RowKind.PAGES)


@contextmanager
def open_pack(path: Path) -> Iterator[Pack]:
    """Open a pack and check its index."""
    with open_source(path) as source:
        with blamed_on(str(path)):
            pack = Pack.read(source)
        yield pack


def _damaged(why: str) -> BadInputError:
    return BadInputError(f"The pack is damaged: {why}.", "Copy it again, or make it again with `torchtailor tailor`.")
