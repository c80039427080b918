"""Packs: files of containers that were moved out of libraries, found by key and read by mapping.

A pack is a header, the rows of its index sorted by key, a description as JSON, and whole containers. A key is the hash
of the container as the stock library has it, so that the same ticket finds the code of whichever GPU a pack is for.
The hook (`native/hook.c`) reads the same format.
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
from itertools import pairwise
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


@dataclass(frozen=True)
class PackPlace:
    """Where the pack of a library goes, and where the library looks for the hook."""

    folder: Path | None  # None: the pack is made for the proof alone
    hook: str = ""  # the path from the library's folder to the hook's; empty where it lies beside it


class PackRow(NamedTuple):
    """Where a container lies in a pack."""

    key: bytes
    offset: int
    size: int
    crc: int


def container_key(source: ByteSource, container: Container) -> bytes:
    """The key of a container: the hash of its bytes, header included."""
    hasher = hashlib.blake2b(digest_size=KEY_SIZE)
    for chunk in _chunks(source, container.offset, container.end):
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

    @property
    def count(self) -> int:
        return len(self._rows)

    def finish(self) -> int:
        """Write the index; returns the size of the file."""
        last = max((row.offset + row.size for row in self._rows.values()), default=0)
        rows = b"".join(_ROW.pack(row.key, row.offset, row.size, row.crc, 0) for _, row in sorted(self._rows.items()))
        at = _HEADER.size + len(rows)
        size = max(last, at + len(self._description))
        fields = (_MAGIC, _VERSION, len(self._rows), _HEADER.size, at, len(self._description), size)
        checks = (zlib.crc32(rows), zlib.crc32(self._description), 0)
        header = _HEADER.pack(*fields, *checks, 0)[:_CHECKED]
        write_at(self._fd, 0, header + struct.pack("<I", zlib.crc32(header)) + rows + self._description)
        os.ftruncate(self._fd, size)
        return size


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
        rows = tuple(PackRow(key, offset, length, check) for key, offset, length, check, _ in _ROW.iter_unpack(data))
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

    def container(self, row: PackRow) -> Container:
        """The container of a row; BadInputError where its bytes are damaged."""
        crc = 0
        for chunk in _chunks(self.source, row.offset, row.offset + row.size):
            crc = zlib.crc32(chunk, crc)
        if crc != row.crc:
            raise _damaged(f"the checksum of container {row.key.hex()[:12]} is wrong")
        container = read_container(self.source, row.offset, row.offset + row.size)
        if container.stored_size != row.size:
            raise _damaged(f"container {row.key.hex()[:12]} has another size than its row")
        return container

    @property
    def stored_size(self) -> int:
        """Bytes of all containers."""
        return sum(row.size for row in self.rows)


@contextmanager
def open_pack(path: Path) -> Iterator[Pack]:
    """Open a pack and check its index."""
    with open_source(path) as source:
        with blamed_on(str(path)):
            pack = Pack.read(source)
        yield pack


def _damaged(why: str) -> BadInputError:
    return BadInputError(f"The pack is damaged: {why}.", "Copy it again, or make it again with `torchtailor tailor`.")
