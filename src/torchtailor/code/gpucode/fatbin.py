"""Fatbin containers: NVIDIA's format for GPU code of several architectures in one blob.

A container is a 16-byte header and a row of entries; each entry is a header of its own length and a padded
payload: a cubin, PTX or LTO-IR, raw or compressed. Wrappers are the 24-byte records through which host code
finds containers. Offsets are those of the file or buffer that was read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import lru_cache
from typing import NamedTuple

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Suffix
from torchtailor.code.binary.elf import FETCH_AGAIN
from torchtailor.code.binary.source import Bytes, ByteSource
from torchtailor.core.errors import BadInputError
from torchtailor.core.tuples import quickly

CONTAINER_HEADER = struct.Struct("<IHHQ")
CONTAINER_MAGIC = 0xBA55ED50
CONTAINER_START = struct.pack("<IHH", CONTAINER_MAGIC, 1, CONTAINER_HEADER.size)

ENTRY_HEADER = struct.Struct("<HHIQIIHHIIIQQQ")
ENTRY_VERSION = 0x0101

TICKET = struct.Struct("<8s16s")  # behind the header of a container whose code is in a pack: the mark and the key
TICKET_MARK = b"TTPACK1\0"

_PARTS_HEADER = struct.Struct("<II")

WRAPPER = struct.Struct("<iiQQ")
WRAPPER_MAGIC = 0x466243B1

ALIGNMENT = 8  # of entries and payloads inside a container, and of containers where nvcc put them
ArchKey = tuple[int, int, int]
_MAX_HEADER = 1 << 16
_MAX_SM = 999
MAX_RAW_SIZE = (1 << 31) - 1  # what lz4 can count
MAX_RATIO = 200  # of zstd; real code is packed to a tenth, and LZ4 cannot do better than 255
_SMALL_IMAGE = 64 << 20
_AT_ONCE = 1 << 24


class ImageKind(IntEnum):
    """What an entry holds. A number not listed here is kept unchanged and reported as unknown."""

    UNKNOWN = 0
    PTX = 1
    CUBIN = 2
    OLD_CUBIN = 4
    LTOIR = 8
    RELOCATABLE_PTX = 64
    CONCATENATED = 256  # several images compressed as one (nvcc --concat, CUDA 13.4)

    @property
    def code_kind(self) -> CodeKind | None:
        """The kind of code by which the catalog knows it."""
        return _CODE_KINDS.get(self)


_CODE_KINDS = {
    ImageKind.PTX: CodeKind.PTX,
    ImageKind.RELOCATABLE_PTX: CodeKind.PTX,
    ImageKind.CUBIN: CodeKind.CUBIN,
    ImageKind.OLD_CUBIN: CodeKind.CUBIN,
    ImageKind.LTOIR: CodeKind.LTOIR,
}


class Compression(Enum):
    """How a payload is stored."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    UNKNOWN = "unknown"


class EntryFlag(IntFlag):
    """The flag bits whose meaning is known."""

    BITS_64 = 0x1
    DEBUG = 0x2
    LINUX = 0x10
    LZ4 = 0x2000
    ZSTD = 0x8000
    SCRAMBLED = 0x10000  # compressed LTO-IR: obfuscated with a key that NVIDIA's libraries have
    ARCH_SPECIFIC = 0x100000
    FAMILY_SPECIFIC = 0x200000


# plain numbers: an IntFlag operation costs more than the whole of the parsing around it
_LZ4, _ZSTD = int(EntryFlag.LZ4), int(EntryFlag.ZSTD)
_SCRAMBLED = int(EntryFlag.SCRAMBLED)
_COMPRESSED = _LZ4 | _ZSTD
_COMPRESSION = {0: Compression.UNKNOWN, _LZ4: Compression.LZ4, _ZSTD: Compression.ZSTD}
_SUFFIXED = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)
_SUFFIXES = {
    0: Suffix.NONE,
    int(EntryFlag.ARCH_SPECIFIC): Suffix.ARCH,
    int(EntryFlag.FAMILY_SPECIFIC): Suffix.FAMILY,
}


def _unknown(kind: int, sm: int) -> str:
    """What is known of a kind of code that nobody has met."""
    return f"unknown (kind {kind}, {sm})" if sm else f"unknown (kind {kind})"


class Part(NamedTuple):
    """One of the images that were compressed together; it can only be had by unpacking them all."""

    kind: ImageKind
    kind_number: int
    target: CodeTarget | None
    offset: int  # in the unpacked payload
    size: int
    flags: int
    sm: int

    @property
    def arch_key(self) -> ArchKey:
        return (self.kind_number, self.sm, self.flags & _SUFFIXED)

    @property
    def label(self) -> str:
        return str(self.target) if self.target else _unknown(self.kind_number, self.sm)


class Image(NamedTuple):  # libraries hold tens of thousands: a tuple is made in a fifth of a dataclass's time
    """One entry of a container: a piece of GPU code for one architecture."""

    kind: ImageKind
    kind_number: int
    target: CodeTarget | None  # None where the kind is unknown or the parts have one each
    offset: int  # of the entry's header
    header_size: int
    padded_size: int  # of the payload as stored
    compressed_size: int  # 0 where it is stored raw
    raw_size: int  # after decompression
    compression: Compression
    flags: int
    sm: int
    name: str
    parts: tuple[Part, ...] = ()  # of a concatenated entry

    @property
    def payload_offset(self) -> int:
        return self.offset + self.header_size

    @property
    def payload_size(self) -> int:
        """Bytes of the payload without its padding."""
        return self.compressed_size or self.padded_size

    @property
    def stored_size(self) -> int:
        """Bytes the entry takes in the file, header and padding included."""
        return self.header_size + self.padded_size

    @property
    def end(self) -> int:
        return self.offset + self.header_size + self.padded_size

    @property
    def bare(self) -> bool:
        """Whether it lies there without a container: the library itself loads it, and knows its size."""
        return self.header_size == 0

    @property
    def pieces(self) -> tuple[Image | Part, ...]:
        """The images that are compressed together in it, or else itself."""
        return self.parts or (self,)

    @property
    def scrambled(self) -> bool:
        """Whether the payload can only be unpacked by NVIDIA's libraries, and must be compared as stored."""
        return bool(self.flags & _SCRAMBLED)

    @property
    def arch_key(self) -> ArchKey:
        """What tells architectures apart, in a form that is quick to count by."""
        return (self.kind_number, self.sm, self.flags & _SUFFIXED)

    @property
    def label(self) -> str:
        """`sm_90a`, `compute_120`, or what is known of a kind nobody has met."""
        return str(self.target) if self.target else _unknown(self.kind_number, self.sm)


_image = quickly(Image)


def codes_of(images: Iterable[Image]) -> Iterator[CodeTarget]:
    """What images are for, and their parts, as far as that is known."""
    return (piece.target for image in images for piece in image.pieces if piece.target)


class Container(NamedTuple):
    """One container: the images of what was one translation unit, or one linked device image; or a bare cubin."""

    offset: int
    header_size: int  # 0 for a cubin that lies there without a container
    size: int  # of what follows the header
    entries: tuple[Image, ...]
    ticket: bytes = b""  # the key of its code in a pack, where the code was moved to one

    @property
    def end(self) -> int:
        return self.offset + self.stored_size

    @property
    def stored_size(self) -> int:
        return self.header_size + self.size + (TICKET.size if self.ticket else 0)

    @property
    def bare(self) -> bool:
        return self.header_size == 0

    def size_with(self, images: int) -> int:
        """Bytes it takes with images of this size: what is left of a bare cubin is an empty container."""
        return images if self.bare and images else CONTAINER_HEADER.size + images


class WrapperVersion(IntEnum):
    """What the last field of a wrapper means."""

    ORDINARY = 1
    LINKED = 2  # a pointer to an array of prelinked containers


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The record that host code registers; its pointers are relocated and have to be looked up."""

    offset: int
    version: WrapperVersion
    container_pointer: int  # as stored, before relocation
    last_pointer: int

    CONTAINER_FIELD = 8
    LAST_FIELD = 16


def code_target(kind_number: int, sm: int, flags: int) -> tuple[ImageKind, CodeTarget | None]:
    """The kind of an image, and what it is for as far as that is known."""
    return _target(kind_number, sm, flags & _SUFFIXED)


@lru_cache(maxsize=4096)
def _target(kind_number: int, sm: int, suffix_bits: int) -> tuple[ImageKind, CodeTarget | None]:
    kind = _KINDS.get(kind_number, ImageKind.UNKNOWN)
    code = kind.code_kind
    suffix = _SUFFIXES.get(suffix_bits)
    if code is None or suffix is None or not 10 <= sm <= _MAX_SM:
        return kind, None
    return kind, CodeTarget(code, Capability.from_number(sm), suffix)


_KINDS = {int(kind): kind for kind in ImageKind if kind is not ImageKind.UNKNOWN}


def read_container(source: ByteSource, offset: int, limit: int) -> Container:
    """Read the container at `offset`, which must end at or before `limit`.

    nvcc aligns containers to 8; those that a tool embeds as bytes (LTO-IR in libcudf) may lie anywhere.
    """
    if offset + CONTAINER_HEADER.size > limit:
        raise _damaged(offset, "its header is cut short")
    magic, version, header_size, size = CONTAINER_HEADER.unpack(source.read(offset, CONTAINER_HEADER.size))
    if magic != CONTAINER_MAGIC:
        raise _damaged(offset, "it does not begin with the magic number of a container")
    if version != 1 or header_size != CONTAINER_HEADER.size:
        raise _damaged(offset, f"its version is {version} and its header {header_size} bytes long")
    end = offset + header_size + size
    if end > limit:
        raise _damaged(offset, "it reaches past the end of its section")
    if size == 0:
        return Container(offset, header_size, size, (), _read_ticket(source, end, limit))
    entries: list[Image] = []
    try:
        _read_entries(source, offset, offset + header_size, end, entries)
    except DamagedContainerError as error:
        error.reached = entries[-1].end if entries else offset
        raise
    return Container(offset, header_size, size, tuple(entries))


def _read_ticket(source: ByteSource, offset: int, limit: int) -> bytes:
    """The key behind an empty container; none where it was empty from the start."""
    if offset + TICKET.size > limit:
        return b""
    mark, key = TICKET.unpack(source.read(offset, TICKET.size))
    return bytes(key) if mark == TICKET_MARK else b""


def _read_entries(source: ByteSource, container: int, position: int, end: int, entries: list[Image]) -> None:
    """Add the entries to a list; what was read before an error is asked for."""
    read, unpack, fixed = source.read, ENTRY_HEADER.unpack, ENTRY_HEADER.size
    while position < end:
        if position + fixed > end:
            raise _damaged(container, f"the entry at {position:#x} is cut short")
        fields = unpack(read(position, fixed))
        kind_number, version, header_size, padded, compressed, record, _, _, sm, _, name_size, flags, _, raw = fields
        after = position + header_size + padded
        if (
            version != ENTRY_VERSION
            or not fixed <= header_size <= _MAX_HEADER
            or (header_size | padded) % ALIGNMENT
            or after > end
            or compressed > padded
        ):
            raise _damaged(container, f"the entry at {position:#x} {_why_impossible(fields, position, end)}")
        if compressed:
            compression = _COMPRESSION.get(flags & _COMPRESSED, Compression.UNKNOWN)
            if raw == 0:
                raise _damaged(container, f"the compressed entry at {position:#x} does not say its raw size")
        else:
            compression = Compression.NONE
            raw = padded
        name = ""
        if name_size:
            name_offset = fields[9]
            if name_offset + name_size > header_size:
                raise _damaged(container, f"the name of the entry at {position:#x} is outside its header")
            name = bytes(read(position + name_offset, name_size)).rstrip(b"\0").decode("utf-8", "backslashreplace")
        kind, target = _target(kind_number, sm, flags & _SUFFIXED)
        parts: tuple[Part, ...] = ()
        if kind is ImageKind.CONCATENATED:
            parts = _read_parts(read(position, header_size), record, raw, container)
        where = (position, header_size, padded, compressed, raw, compression)
        entries.append(_image((kind, kind_number, target, *where, flags, sm, name, parts)))
        position = after


def _why_impossible(fields: tuple[int, ...], position: int, end: int) -> str:
    """What is wrong with the sizes of an entry."""
    version, header_size, padded = fields[1:4]
    if version != ENTRY_VERSION:
        return f"has version {version:#x}"
    if not ENTRY_HEADER.size <= header_size <= _MAX_HEADER or header_size % ALIGNMENT or padded % ALIGNMENT:
        return "has impossible sizes"
    if position + header_size + padded > end:
        return "reaches past the end of the container"
    return "is compressed to more than its own size"


def _read_parts(header: Bytes, record: int, raw: int, container: int) -> tuple[Part, ...]:
    """The table in the header of a concatenated entry: records like entry headers, offsets in the unpacked bytes."""
    if record + _PARTS_HEADER.size > len(header):
        raise _damaged(container, "the table of a concatenated entry is outside its header")
    count, size = _PARTS_HEADER.unpack_from(header, record)
    position, table_end = record + _PARTS_HEADER.size, record + size  # the size counts its own eight bytes
    if table_end > len(header) or count * ENTRY_HEADER.size > size:
        raise _damaged(container, "the table of a concatenated entry is outside its header")
    parts: list[Part] = []
    reached = 0
    for _ in range(count):
        if position + ENTRY_HEADER.size > table_end:
            raise _damaged(container, "the table of a concatenated entry is cut short")
        kind_number, version, offset, length, _, options, _, _, sm, _, _, flags, _, _ = ENTRY_HEADER.unpack_from(
            header, position
        )
        if version != ENTRY_VERSION or offset < reached or offset + length > raw:
            raise _damaged(container, "a part of a concatenated entry is outside it or overlaps another")
        reached = offset + length
        kind, target = _target(kind_number, sm, flags & _SUFFIXED)
        parts.append(Part(kind, kind_number, target, offset, length, flags, sm))
        position += ENTRY_HEADER.size
        if options:  # {offset, length} and the bytes, closed by a zero and padded
            if position + _PARTS_HEADER.size > table_end:
                raise _damaged(container, "the table of a concatenated entry is cut short")
            _, length = _PARTS_HEADER.unpack_from(header, position)
            position += _PARTS_HEADER.size + (length // ALIGNMENT + 1) * ALIGNMENT
    return tuple(parts)


def read_wrapper(source: ByteSource, offset: int) -> Wrapper:
    """Read the wrapper at `offset`."""
    magic, version, container, last = WRAPPER.unpack(source.read(offset, WRAPPER.size))
    if magic != WRAPPER_MAGIC:
        raise BadInputError(f"There is no fatbin wrapper at {offset:#x}, where one should be.")
    if version not in WrapperVersion._value2member_map_:
        raise BadInputError(f"The fatbin wrapper at {offset:#x} has version {version}, which is not known.")
    return Wrapper(offset, WrapperVersion(version), container, last)


def decompress(source: ByteSource, image: Image, *, max_size: int = MAX_RAW_SIZE) -> bytes:
    """The payload of an image as the GPU would get it."""
    if image.scrambled:
        raise BadInputError(
            f"The {image.label} image at {image.offset:#x} is scrambled.", "Compare it as it is stored."
        )
    payload = source.read(image.payload_offset, image.payload_size)
    return decompress_payload(payload, image.compression, image.raw_size, max_size=max_size)


def decompress_payload(
    payload: bytes | bytearray | memoryview,
    compression: Compression,
    raw_size: int,
    *,
    max_size: int = MAX_RAW_SIZE,
) -> bytes:
    """Undo the compression of a payload; anything but exactly `raw_size` bytes is an error."""
    if raw_size > max_size:
        raise BadInputError(f"An image says it is {raw_size} bytes long, more than the {max_size} allowed.")
    if compression is Compression.NONE:
        data = bytes(payload)
    elif compression is Compression.LZ4:
        data = _unlz4(payload, raw_size)
    elif compression is Compression.ZSTD:
        data = _unzstd(payload, raw_size)
    else:
        raise BadInputError("An image is compressed in a way that is not known.")
    if len(data) != raw_size:
        raise BadInputError(f"An image has {len(data)} bytes after decompression and should have {raw_size}.")
    return data


def _unlz4(payload: bytes | bytearray | memoryview, raw_size: int) -> bytes:
    import lz4.block

    if raw_size > len(payload) * 255 + 64:  # the format cannot do better: do not allocate for a lie
        raise BadInputError(f"An image of {len(payload)} bytes says it unpacks to {raw_size}, which LZ4 cannot do.")
    try:
        return bytes(lz4.block.decompress(payload, uncompressed_size=raw_size))
    except lz4.block.LZ4BlockError as error:
        raise BadInputError("An image's LZ4 data is damaged.") from error


def _unzstd(payload: bytes | bytearray | memoryview, raw_size: int) -> bytes:
    import zstandard

    if raw_size > _SMALL_IMAGE and raw_size > len(payload) * MAX_RATIO:
        raise BadInputError(f"An image says it unpacks from {len(payload)} to {raw_size} bytes, as no real one does.")
    try:
        declared = zstandard.frame_content_size(payload)
        if declared not in (-1, raw_size):
            raise BadInputError(f"An image's zstd frame says {declared} bytes and its header {raw_size}.")
        if raw_size <= _AT_ONCE:
            return zstandard.ZstdDecompressor().decompress(payload, max_output_size=raw_size)
        # memory is taken as bytes come, not as the header promises
        reader = zstandard.ZstdDecompressor().stream_reader(payload)
        data = bytearray()
        while len(data) <= raw_size and (chunk := reader.read(_AT_ONCE)):
            data += chunk
        return bytes(data)
    except zstandard.ZstdError as error:
        raise BadInputError("An image's zstd data is damaged.") from error


class DamagedContainerError(BadInputError):
    """What begins like a container and is not a whole one."""

    reached = 0  # where its last whole entry ends


def _damaged(offset: int, why: str) -> DamagedContainerError:
    return DamagedContainerError(
        f"The GPU code container at {offset:#x} is damaged: {why}.",
        FETCH_AGAIN,
    )
