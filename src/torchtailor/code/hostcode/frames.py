"""Bounds of functions from .eh_frame, which even stripped libraries keep."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from torchtailor.code.binary.elf import ElfFile

_PCREL_SDATA4 = 0x1B  # what every compiler of today writes for position-independent code
_DATAREL_SDATA4 = 0x3B
_UDATA4 = 0x03


def frame_ranges(elf: ElfFile, data: mmap.mmap) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Start and size of every function with an unwind entry, through the sorted table in .eh_frame_hdr.

    Anything unusual in the tables gives no functions rather than wrong ones: bounds then come from symbols.
    """
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    header, frames = elf.section(".eh_frame_hdr"), elf.section(".eh_frame")
    if header is None or frames is None or not header.in_file or not frames.in_file or header.size < 12:
        return nothing
    version, pointer_kind, count_kind, table_kind = data[header.offset : header.offset + 4]
    if (version, pointer_kind, count_kind, table_kind) != (1, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4):
        return nothing
    count = int.from_bytes(data[header.offset + 8 : header.offset + 12], "little")
    count = min(count, (header.size - 12) // 8)
    table = np.frombuffer(data, "<i4", count * 2, header.offset + 12).reshape(count, 2).astype(np.int64)
    starts = table[:, 0] + header.address
    entries = table[:, 1] + header.address - frames.address  # offsets inside .eh_frame
    inside = (entries >= 0) & (entries + 16 <= frames.size)
    starts, entries = starts[inside], entries[inside]
    section = np.frombuffer(data, np.uint8, frames.size, frames.offset)
    sizes = np.zeros(len(entries), np.int64)
    for byte in range(4):  # length, CIE pointer, first address, then the size: all four bytes each
        sizes |= section[entries + 12 + byte].astype(np.int64) << (8 * byte)
    usual = section[entries] != 0xFF  # a 64-bit entry would begin with 0xffffffff
    return starts[usual], sizes[usual]
