"""Deflate on all cores: pieces are packed apart from each other and joined into one stream."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Protocol

PIECE = 4 << 20
STREAM_END = b"\x03\x00"  # an empty last block
_FAST_LEVEL = 2  # isal's 3 takes three times as long for one percent
_SMALL_LEVEL = 6
_PACKED_ALREADY = 0.95  # of its size: what is left so large by one effort is packed code, and stays so by any


class Effort(Enum):
    """How hard to pack: FAST is a tenth larger on host code and ten to fifteen times quicker than SMALL."""

    FAST = "fast"
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class Packed:
    """What the zip's table says about a deflated file."""

    crc: int
    size: int
    packed_size: int


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self, mode: int, /) -> bytes: ...


def deflate_bytes(data: bytes, effort: Effort = Effort.FAST) -> bytes:
    """One small file as a raw deflate stream."""
    return deflate_piece(data, effort)[0] + STREAM_END


def deflate_file(source: Path, target: BinaryIO, effort: Effort, threads: int) -> Packed:
    """Write the raw deflate stream of a file; at most a few pieces are in memory."""
    crc = size = packed_size = 0
    with source.open("rb") as file, ThreadPoolExecutor(threads) as pool:
        for packed, piece_crc, piece_size in _in_order(file, pool, effort, threads + 1):
            crc = combined_crc(crc, piece_crc, piece_size)
            size += piece_size
            packed_size += target.write(packed)
    packed_size += target.write(STREAM_END)
    return Packed(crc, size, packed_size)


def _in_order(file: BinaryIO, pool: ThreadPoolExecutor, effort: Effort, ahead: int) -> Iterator[tuple[bytes, int, int]]:
    waiting: deque[tuple[Future[tuple[bytes, int]], int]] = deque()
    while piece := file.read(PIECE):
        waiting.append((pool.submit(deflate_piece, piece, effort), len(piece)))
        if len(waiting) >= ahead:
            future, size = waiting.popleft()
            yield *future.result(), size
    while waiting:
        future, size = waiting.popleft()
        yield *future.result(), size


def deflate_piece(data: bytes, effort: Effort) -> tuple[bytes, int]:
    """A run of deflate blocks that ends on a byte, so that the next run can follow; and the checksum."""
    from isal import isal_zlib

    packed = _deflate(isal_zlib.compressobj(_FAST_LEVEL, isal_zlib.DEFLATED, -15), data)
    if effort is Effort.SMALL and len(packed) < _PACKED_ALREADY * len(data):
        packed = _deflate(zlib.compressobj(_SMALL_LEVEL, zlib.DEFLATED, -15), data)
    return packed, isal_zlib.crc32(data)


def _deflate(compressor: _Compressor, data: bytes) -> bytes:
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def combined_crc(first: int, second: int, second_size: int) -> int:
    from isal import isal_zlib

    combined: int = isal_zlib.crc32_combine(first, second, second_size)
    return combined
