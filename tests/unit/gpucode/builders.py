"""Writes containers and libraries, independently of the readers under test."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

import lz4.block
import zstandard

FIXTURES = Path(__file__).parent / "fixtures"

LZ4, ZSTD, ARCH, FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
BASE_FLAGS = 0x11


def pad(data: bytes, to: int = 8) -> bytes:
    return data + bytes(-len(data) % to)


@dataclass(frozen=True)
class Entry:
    """One entry as it should come out of the reader."""

    payload: bytes
    kind: int = 2
    sm: int = 90
    flags: int = BASE_FLAGS
    compression: str = "none"
    name: bytes = b""
    extra_header: int = 0  # more header than the fixed part needs, in bytes

    def encode(self) -> bytes:
        flags, compressed = self.flags, 0
        body = self.payload
        if self.compression == "lz4":
            body, flags = lz4.block.compress(self.payload, store_size=False), flags | LZ4
            compressed = len(body)
        elif self.compression == "zstd":
            body, flags = zstandard.ZstdCompressor().compress(self.payload), flags | ZSTD
            compressed = len(body)
        name_offset = 64 if self.name else 0
        header_size = 64 + len(pad(self.name)) + self.extra_header
        body = pad(body)
        header = struct.pack(
            "<HHIQIIHHIIIQQQ",
            self.kind,
            0x0101,
            header_size,
            len(body),
            compressed,
            0,
            8,
            1,
            self.sm,
            name_offset,
            len(self.name),
            flags,
            0,
            len(self.payload) if compressed else 0,
        )
        return header + pad(self.name) + bytes(self.extra_header) + body


def cubin(arch: str, size: int = 3000, *, kernel: str = "kernel") -> bytes:
    """A cubin that says what it is for as nvcc's do: before sm_100 in the old way, from sm_100 on in the new one."""
    sm, specific = int(arch.rstrip("af")), arch.endswith("a")
    names = b"\0.shstrtab\0.text." + kernel.encode() + b"\0"
    code = random.Random(f"{arch} {size} {kernel}").randbytes(size // 8) * 8
    at = 64 + len(pad(code))
    table = at + len(pad(names))
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, at, len(names), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 11, 1, 6, 0, 64, len(code), 0, 0, 128, 0)
    if sm < 100:
        ident, flags = (51, 7), sm << 16 | 0x500 | sm | (0x800 if specific else 0)
    else:
        ident, flags = (65, 8), 0x6000002 | sm << 8 | (0x8 if specific else 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(ident) + bytes(7),
        *(2, 190, 129, 0, table + len(sections), table, flags, 64, 56, 1, 64, 3, 1),
    )
    return header + pad(code) + pad(names) + sections + bytes(56)


def frame(arch: str, size: int = 3000, *, kernel: str = "kernel") -> bytes:
    """The same as a zstd frame, as cuBLASLt has them."""
    return zstandard.ZstdCompressor(level=1).compress(cubin(arch, size, kernel=kernel))


def container(*entries: Entry) -> bytes:
    body = b"".join(entry.encode() for entry in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@dataclass(frozen=True)
class Place:
    """A section to be written."""

    name: str
    data: bytes
    flags: int = 2  # allocated
    type: int = 1  # PROGBITS


def elf(*places: Place, machine: int = 62) -> bytes:
    """A shared library of one loaded segment that holds these sections; offsets and addresses are the same."""
    image = bytearray(64 + 56)
    rows = []
    names = b"\0"
    for place in places:
        image += bytes(-len(image) % 16)
        rows.append((len(names), place.type, place.flags, len(image), len(image), len(place.data)))
        names += place.name.encode() + b"\0"
        image += place.data
    loaded = len(image)
    names_name = len(names)
    names += b".shstrtab\0"
    names_offset = len(image)
    image += names
    image += bytes(-len(image) % 8)
    table = len(image)
    image += bytes(64)
    for name, kind, flags, address, offset, size in rows:
        shown = address if flags & 2 else 0
        image += struct.pack("<IIQQQQIIQQ", name, kind, flags, shown, offset, size, 0, 0, 16, 0)
    image += struct.pack("<IIQQQQIIQQ", names_name, 3, 0, 0, names_offset, len(names), 0, 0, 1, 0)
    count = len(rows) + 2
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    image[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, table, 0, 64, 56, 1, 64, count, count - 1
    )
    image[64:120] = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, loaded, loaded, 4096)
    return bytes(image)
