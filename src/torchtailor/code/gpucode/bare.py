"""Cubins that lie in a file without a container around them: raw, or each as a zstd frame of its own.

cuBLASLt keeps hundreds of zstd frames in its data, beside records with the kernel's name, its architecture, a pointer
and both sizes; other libraries keep tables of raw cubins. A cubin is an ELF file whose header names its architecture:
the first bytes of a frame are enough. The `a` suffix is in the header only up to CUDA 12; a cubin that does not say it
there counts as one without, which more GPUs may use.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from torchtailor.code.binary.elf_headers import HEADER, MAGIC, SECTION_HEADER
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import (
    MAX_RAW_SIZE,
    Compression,
    Container,
    EntryFlag,
    Image,
    ImageKind,
    code_target,
)

CUBIN_START = MAGIC + b"\x02\x01\x01"  # 64-bit, little-endian, version 1
FRAME_START = struct.pack("<I", 0xFD2FB528)

_EM_CUDA = 190
_OLD_ABI = 7  # the architecture is in the lowest byte of the flags; later in the second and third
_OLD_ARCH_SPECIFIC = 0x800
_ARCH_SPECIFIC = 0x8
_NOBITS = 8
_SMALLEST = 64
_MAX_BLOCK = 128 << 10
_RLE_BLOCK, _PACKED_BLOCK = 1, 2
_MAX_WINDOW = 1 << 27


class CubinHeader(NamedTuple):
    """What the ELF header of a cubin says."""

    sm: int
    arch_specific: bool
    size: int  # up to the end of its tables, which close the file
    section_table: int
    section_count: int


def read_bare(source: ByteSource, offset: int, limit: int) -> Container | None:
    """The cubin at `offset`, raw or as a zstd frame, as a container of one image; None where there is none."""
    start = bytes(source.read(offset, min(len(CUBIN_START), limit - offset)))
    if start == CUBIN_START:
        return _raw_cubin(source, offset, limit)
    if start.startswith(FRAME_START):
        return _packed_cubin(source, offset, limit)
    return None


def cubin_header(head: bytes) -> CubinHeader | None:
    """Read the first 64 bytes of a cubin; None where they are no cubin's."""
    if len(head) < HEADER.size or not head.startswith(CUBIN_START):
        return None
    ident, _, machine, version, _, segments, sections, flags, *sizes = HEADER.unpack(head[: HEADER.size])
    own_size, segment_size, segment_count, section_size, section_count, _ = sizes
    if machine != _EM_CUDA or own_size != HEADER.size or section_size not in (0, SECTION_HEADER.size):
        return None
    old = ident[8] <= _OLD_ABI
    sm = flags & 0xFF if old else flags >> 8 & 0xFFFF
    arch_specific = bool(flags & (_OLD_ARCH_SPECIFIC if old else _ARCH_SPECIFIC))
    size = max(HEADER.size, sections + section_count * section_size, segments + segment_count * segment_size)
    if version == 0 or not sm or size > MAX_RAW_SIZE:
        return None
    return CubinHeader(sm, arch_specific, size, sections, section_count)


def _raw_cubin(source: ByteSource, offset: int, limit: int) -> Container | None:
    if offset + HEADER.size > limit:
        return None
    header = cubin_header(bytes(source.read(offset, HEADER.size)))
    if header is None or header.size > limit - offset or not header.section_count:
        return None
    table = source.read(offset + header.section_table, header.section_count * SECTION_HEADER.size)
    ends = [row[4] + row[5] for row in SECTION_HEADER.iter_unpack(table) if row[1] != _NOBITS]
    size = max([header.size, *ends])
    if size > limit - offset:
        return None
    return _container(offset, size, size, header, Compression.NONE)


def _packed_cubin(source: ByteSource, offset: int, limit: int) -> Container | None:
    frame = _frame_header(source, offset, limit)
    if frame is None:
        return None
    blocks, content_size, checksum = frame
    first_end = _block_end(source, blocks, limit)
    if first_end is None:
        return None
    head = _unpacked_head(bytes(source.read(offset, first_end[0] - offset)))
    header = cubin_header(head)
    if header is None:
        return None
    end = blocks
    while True:
        step = _block_end(source, end, limit)
        if step is None:
            return None
        end, last = step
        if last:
            break
    end += 4 if checksum else 0
    raw_size = content_size or header.size
    if end > limit or end - offset < _SMALLEST or not header.size <= raw_size <= MAX_RAW_SIZE:
        return None
    return _container(offset, end - offset, raw_size, header, Compression.ZSTD)


def cubin_image(head: bytes, size: int) -> Image | None:
    """The image that a file of this size with these first 64 bytes is; None where it is no cubin."""
    header = cubin_header(head)
    if header is None or header.size > size:
        return None
    return _container(0, size, size, header, Compression.NONE).entries[0]


def _container(offset: int, size: int, raw_size: int, header: CubinHeader, compression: Compression) -> Container:
    flags = int(EntryFlag.BITS_64) | (int(EntryFlag.ARCH_SPECIFIC) if header.arch_specific else 0)
    kind, target = code_target(int(ImageKind.CUBIN), header.sm, flags)
    packed = size if compression is Compression.ZSTD else 0
    number = int(ImageKind.CUBIN)
    image = Image(kind, number, target, offset, 0, size, packed, raw_size, compression, flags, header.sm, "")
    return Container(offset, 0, size, (image,))


def _frame_header(source: ByteSource, offset: int, limit: int) -> tuple[int, int, bool] | None:
    """Where the blocks of a frame begin, the size of its content (0: not said) and whether a checksum follows."""
    head = bytes(source.read(offset, min(18, limit - offset)))
    if len(head) < 18:
        return None
    descriptor = head[4]
    if descriptor & 0x08:  # reserved
        return None
    single = bool(descriptor & 0x20)
    position = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (int(single), 2, 4, 8)[descriptor >> 6]
    content_size = int.from_bytes(head[position : position + width], "little") + (256 if width == 2 else 0)
    return offset + position + width, content_size, bool(descriptor & 0x04)


def _block_end(source: ByteSource, position: int, limit: int) -> tuple[int, bool] | None:
    """Where a block ends, and whether it is the last of its frame."""
    if position + 3 > limit:
        return None
    header = int.from_bytes(source.read(position, 3), "little")
    kind, size = header >> 1 & 3, header >> 3
    if kind > _PACKED_BLOCK or size > _MAX_BLOCK:
        return None
    end = position + 3 + (1 if kind == _RLE_BLOCK else size)
    return (end, bool(header & 1)) if end <= limit else None


def _unpacked_head(first_block: bytes) -> bytes:
    """The first bytes of a frame's content, from its header and its first block alone."""
    import zstandard

    try:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        return unpacker.decompress(first_block)[: HEADER.size]
    except (zstandard.ZstdError, MemoryError):
        return b""
