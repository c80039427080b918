"""A delta from a cut library, or from a file that was left out, back to the stock one, byte for byte.

The stock file is a list of ranges: ranges of the cut file, and ranges that are stored in the delta. Kept
images are found by their content; everything else that is loaded lies at the same virtual address in both files.
Both files together take about as much disk as the stock one did.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.files import FileSource, open_file

_MAGIC = b"TTREMOV1"
_HEADER = struct.Struct("<8sQQI")  # magic, number of ranges, bytes of the packed list, checksum of the list
_RANGE = struct.Struct("<QQ")
_STORED = (1 << 64) - 1
_BLOCK = 4096
_STEP = 1 << 20
_LEVEL = 3
_MAX_RANGES = 1 << 22  # a block of 4 kB each makes 16 GB


@dataclass(frozen=True, slots=True)
class DeltaRange:
    """Bytes of the stock file: at `offset` of the cut file, or stored in the delta where that is None."""

    offset: int | None
    size: int


def write_delta(stock: Path, cut: Path, target: Path, stock_sha256: str) -> None:
    """Write what is needed to rebuild `stock` from `cut`, and check that it works."""
    with open_file(stock) as before, open_file(cut) as after:
        _write(before, _joined(_ranges(before, after)), target)
    _check(stock, cut, target, stock_sha256)


def write_whole(stock: Path, target: Path, stock_sha256: str) -> None:
    """Write what is needed to rebuild `stock` from nothing, and check that it works."""
    size = stock.stat().st_size
    with open_file(stock) if size else nullcontext() as before:
        _write(before, [DeltaRange(None, size)] if size else [], target)
    _check(stock, None, target, stock_sha256)


def _write(before: FileSource | None, ranges: Sequence[DeltaRange], target: Path) -> None:
    with target.open("xb") as file:
        table = b"".join(_RANGE.pack(_STORED if p.offset is None else p.offset, p.size) for p in ranges)
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(table)
        file.write(_HEADER.pack(_MAGIC, len(ranges), len(packed), zlib.crc32(table)) + packed)
        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(file, closefd=False) as writer:
            position = 0
            for part in ranges:
                if part.offset is None and before:
                    for chunk in before.chunks(position, part.size):
                        writer.write(chunk)
                position += part.size
        file.flush()
        os.fsync(file.fileno())


def _check(stock: Path, cut: Path | None, target: Path, stock_sha256: str) -> None:
    hasher = hashlib.sha256()
    for chunk in rebuild(cut, target):
        hasher.update(chunk)
    if hasher.hexdigest() != stock_sha256:
        target.unlink()
        raise CheckFailedError(f"{stock} could not be rebuilt from what was kept.", "This is a bug: please report it.")


def rebuild(cut: Path | None, delta: Path) -> Iterator[bytes]:
    """The bytes of the stock file, in order; without `cut` all of them are in the delta."""
    with open_file(cut) if cut else nullcontext() as after, delta.open("rb") as file:
        ranges = _read_ranges(file, delta)
        with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
            for part in ranges:
                if part.offset is not None:
                    if after is None:
                        raise _damaged(delta)
                    yield from after.chunks(part.offset, part.size)
                else:
                    yield from _stored_bytes(reader, part.size, delta)


def _stored_bytes(reader: zstandard.ZstdDecompressionReader, size: int, delta: Path) -> Iterator[bytes]:
    while size:
        try:
            chunk = reader.read(min(size, _STEP))
        except zstandard.ZstdError as error:
            raise _damaged(delta) from error
        if not chunk:
            raise _damaged(delta)
        size -= len(chunk)
        yield chunk


def _read_ranges(file: BinaryIO, delta: Path) -> Iterator[DeltaRange]:
    try:
        magic, count, size, checksum = _HEADER.unpack(file.read(_HEADER.size))
        if magic != _MAGIC or count > _MAX_RANGES or size > delta.stat().st_size:
            raise _damaged(delta)
        table = zstandard.ZstdDecompressor().decompress(file.read(size), count * _RANGE.size)
    except (struct.error, zstandard.ZstdError) as error:
        raise _damaged(delta) from error
    if zlib.crc32(table) != checksum or len(table) != count * _RANGE.size:
        raise _damaged(delta)
    return (DeltaRange(None if offset == _STORED else offset, size) for offset, size in _RANGE.iter_unpack(table))


def _damaged(delta: Path) -> BadInputError:
    return BadInputError(f"{delta} is damaged.", "Reinstall the package instead.")


def _ranges(before: FileSource, after: FileSource) -> Iterator[DeltaRange]:
    stock, cut = ElfFile(before), ElfFile(after)
    images = list(scan_elf(cut).images)
    kept = {_digest(after, image.offset, image.stored_size): image.offset for image in images}
    sizes = {image.stored_size for image in images}  # most images differ in size already
    position = 0
    for image in sorted(scan_elf(stock).images, key=lambda image: image.offset):
        if image.offset < position:
            continue
        yield from _by_address(stock, cut, position, image.offset)
        size = image.stored_size
        yield DeltaRange(kept.get(_digest(before, image.offset, size)) if size in sizes else None, size)
        position = image.end
    yield from _by_address(stock, cut, position, stock.size)


def _by_address(stock: ElfFile, cut: ElfFile, start: int, end: int) -> Iterator[DeltaRange]:
    """A range outside of images, block by block: the same bytes at the same address, or stored."""
    while start < end:
        size = min(_BLOCK - start % _BLOCK, end - start)
        address = stock.address_of(start)
        offset = cut.offset_of(address) if address is not None else start
        same = (
            offset is not None
            and offset + size <= cut.size
            and bytes(stock.read(start, size)) == bytes(cut.read(offset, size))
        )
        yield DeltaRange(offset if same else None, size)
        start += size


def _joined(ranges: Iterator[DeltaRange]) -> list[DeltaRange]:
    """Adjacent ranges merged."""
    joined: list[DeltaRange] = []
    for part in ranges:
        last = joined[-1] if joined else None
        if last and last.offset is None and part.offset is None:
            joined[-1] = DeltaRange(None, last.size + part.size)
        elif last and last.offset is not None and part.offset == last.offset + last.size:
            joined[-1] = DeltaRange(last.offset, last.size + part.size)
        elif part.size:
            joined.append(part)
    return joined


def _digest(source: FileSource, offset: int, size: int) -> bytes:
    hasher = hashlib.blake2b(digest_size=20)
    for chunk in source.chunks(offset, size):
        hasher.update(chunk)
    return hasher.digest()
