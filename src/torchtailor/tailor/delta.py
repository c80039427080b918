"""Keeps what a cut took out of a library, so that the stock file can be put together again, byte for byte.

The stock file is written down as a list of pieces: ranges of the cut file, and ranges that were kept apart. Kept
images are found by their content; everything else that is loaded lies at the same virtual address in both files.
Both files together take about as much disk as the stock one did.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from torchtailor.binary.elf import ElfFile
from torchtailor.errors import BadInputError, CheckFailedError
from torchtailor.gpucode.scan import scan_elf
from torchtailor.surgery.files import FileSource, open_file

_MAGIC = b"TTREMOV1"
_HEADER = struct.Struct("<8sQQI")  # magic, number of pieces, bytes of the packed list, checksum of the list
_PIECE = struct.Struct("<QQ")
_APART = (1 << 64) - 1
_BLOCK = 4096
_STEP = 1 << 20
_LEVEL = 3
_MAX_PIECES = 1 << 26


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the stock file: `size` of them at `offset` of the cut file, or kept apart where that is None."""

    offset: int | None
    size: int


def write_removed(stock: Path, cut: Path, target: Path, stock_sha256: str) -> None:
    """Write what is needed to make `stock` of `cut` again, and see that it works."""
    with open_file(stock) as before, open_file(cut) as after, target.open("xb") as file:
        pieces = _joined(_pieces(before, after))
        table = b"".join(_PIECE.pack(_APART if p.offset is None else p.offset, p.size) for p in pieces)
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(table)
        file.write(_HEADER.pack(_MAGIC, len(pieces), len(packed), zlib.crc32(table)) + packed)
        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(file, closefd=False) as writer:
            position = 0
            for piece in pieces:
                if piece.offset is None:
                    for chunk in before.chunks(position, piece.size):
                        writer.write(chunk)
                position += piece.size
        file.flush()
        os.fsync(file.fileno())
    hasher = hashlib.sha256()
    for chunk in rebuilt(cut, target):
        hasher.update(chunk)
    if hasher.hexdigest() != stock_sha256:
        target.unlink()
        raise CheckFailedError(
            f"{stock} could not be made again from what was kept.", "This is a bug: please report it."
        )


def rebuilt(cut: Path, removed: Path) -> Iterator[bytes]:
    """The bytes of the stock file, in order."""
    with open_file(cut) as after, removed.open("rb") as file:
        pieces = _read_pieces(file, removed)
        with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
            for piece in pieces:
                if piece.offset is not None:
                    yield from after.chunks(piece.offset, piece.size)
                else:
                    yield from _kept_apart(reader, piece.size, removed)


def _kept_apart(reader: zstandard.ZstdDecompressionReader, size: int, removed: Path) -> Iterator[bytes]:
    while size:
        try:
            chunk = reader.read(min(size, _STEP))
        except zstandard.ZstdError as error:
            raise _damaged(removed) from error
        if not chunk:
            raise _damaged(removed)
        size -= len(chunk)
        yield chunk


def _read_pieces(file: BinaryIO, removed: Path) -> list[Piece]:
    try:
        magic, count, size, checksum = _HEADER.unpack(file.read(_HEADER.size))
        if magic != _MAGIC or count > _MAX_PIECES or size > removed.stat().st_size:
            raise _damaged(removed)
        table = zstandard.ZstdDecompressor().decompress(file.read(size), count * _PIECE.size)
    except (struct.error, zstandard.ZstdError) as error:
        raise _damaged(removed) from error
    if zlib.crc32(table) != checksum or len(table) != count * _PIECE.size:
        raise _damaged(removed)
    return [Piece(None if offset == _APART else offset, size) for offset, size in _PIECE.iter_unpack(table)]


def _damaged(removed: Path) -> BadInputError:
    return BadInputError(f"{removed} is damaged", "Reinstall the package instead.")


def _pieces(before: FileSource, after: FileSource) -> Iterator[Piece]:
    stock, cut = ElfFile(before), ElfFile(after)
    images = list(scan_elf(cut).images)
    kept = {_digest(after, image.offset, image.stored_size): image.offset for image in images}
    sizes = {image.stored_size for image in images}  # most images are told apart by their size alone
    position = 0
    for image in sorted(scan_elf(stock).images, key=lambda image: image.offset):
        if image.offset < position:
            continue
        yield from _by_address(stock, cut, position, image.offset)
        size = image.stored_size
        yield Piece(kept.get(_digest(before, image.offset, size)) if size in sizes else None, size)
        position = image.end
    yield from _by_address(stock, cut, position, stock.size)


def _by_address(stock: ElfFile, cut: ElfFile, start: int, end: int) -> Iterator[Piece]:
    """A range outside of images, block by block: the same bytes at the same address, or kept apart."""
    while start < end:
        size = min(_BLOCK - start % _BLOCK, end - start)
        address = stock.address_of(start)
        offset = cut.offset_of(address) if address is not None else start
        same = (
            offset is not None
            and offset + size <= cut.size
            and bytes(stock.read(start, size)) == bytes(cut.read(offset, size))
        )
        yield Piece(offset if same else None, size)
        start += size


def _joined(pieces: Iterator[Piece]) -> list[Piece]:
    """Neighbours made one."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.offset is None and piece.offset is None:
            joined[-1] = Piece(None, last.size + piece.size)
        elif last and last.offset is not None and piece.offset == last.offset + last.size:
            joined[-1] = Piece(last.offset, last.size + piece.size)
        elif piece.size:
            joined.append(piece)
    return joined


def _digest(source: FileSource, offset: int, size: int) -> bytes:
    hasher = hashlib.blake2b(digest_size=20)
    for chunk in source.chunks(offset, size):
        hasher.update(chunk)
    return hasher.digest()
