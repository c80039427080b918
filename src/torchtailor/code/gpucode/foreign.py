"""GPU code that is read and never cut: of AMD (HIP) and Intel (SYCL), and whatever lies in libraries for Windows.

HIP code lies in offload bundles, of clang's format: a table of pieces by architecture and then the pieces, or the same
compressed as one. SYCL code lies in sections that are named after its target.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import zstandard

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import HEADER, MAGIC
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.report import ImageGroup, group_images, merge_groups
from torchtailor.code.gpucode.scan import containers_in
from torchtailor.core.errors import BadInputError

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
PE_MAGIC = b"MZ"
_NAMED_GPU = re.compile(r"gfx[0-9a-f]{3,4}(?:-generic)?")
AMD_GPU = 224  # the machine of an ELF file for AMD's GPUs

_PE_OFFSET = 0x3C
_PE_HEADER = struct.Struct("<4s2xH12xH2x")  # to the optional header: the mark, how many sections, its size
_PE_SECTION = struct.Struct("<8sIIII16x")
_PIECE = struct.Struct("<QQQ")
_MOST_PIECES = 1000
_LONGEST_NAME = 1000
_TABLE_SIZE = 1 << 16  # of a bundle; the pieces are not unpacked
_PACKED_SIZE = 1 << 18  # of a packed bundle, in which its table is
_MOST_LOOKALIKES = 1000
# By version: the header behind the magic, the version and the method; the size of the file and of what is in it.
_COMPRESSED_HEADERS = {
    1: struct.Struct("<4sHHIQ"),
    2: struct.Struct("<4sHHIIQ"),
    3: struct.Struct("<4sHHQQQ"),
}
_METHODS = {0: "zlib", 1: "zstd"}
_HIP_SECTIONS = (".hip_fat",)  # names in Windows libraries have eight letters
_SYCL_SECTIONS = ("__CLANG_OFFLOAD_BUNDLE__", "__CLANG_")


class GpuMaker(Enum):
    """Whose GPU code it is, by the platform that runs it."""

    HIP = "ROCm"
    SYCL = "Intel XPU"

    @property
    def label(self) -> str:
        """As reports name the kind of code."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class _Range:
    """A section, by its name and its place in the file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Bundle:
    """One bundle: how much of the file it takes, and the size of each piece for a GPU."""

    end: int
    compression: str
    stored: int
    raw: int
    pieces: tuple[tuple[str, int], ...]


def foreign_code(elf: ElfFile) -> tuple[ImageGroup, ...]:
    """The code for GPUs of other makers in a library for Linux."""
    ranges = (_Range(section.name, section.offset, section.size) for section in elf.sections if section.in_file)
    return _in_sections(elf.source, ranges)


def holds_foreign_code(section: str) -> bool:
    """Whether a section of this name is for code of other makers' GPUs."""
    return section.startswith((*_HIP_SECTIONS, *_SYCL_SECTIONS))


def foreign_platform(elf: ElfFile) -> str:
    """The platform of another maker that a library for Linux has code for, by its sections; empty for none."""
    names = [section.name for section in elf.sections if section.in_file and section.size]
    if any(name.startswith(_HIP_SECTIONS) for name in names):
        return GpuMaker.HIP.value
    return GpuMaker.SYCL.value if any(name.startswith(_SYCL_SECTIONS) for name in names) else ""


def code_of_dll(source: ByteSource) -> tuple[ImageGroup, ...] | None:
    """All GPU code of a library for Windows, whoever made it; None where it is no such library."""
    sections = pe_sections(source)
    if sections is None:
        return None
    own = group_images((image for one in containers_in(source) for image in one.entries), "file")
    return (*own, *_in_sections(source, sections))


def bundled_code(
    source: ByteSource, start: int = 0, end: int | None = None, section: str = "file"
) -> Iterator[ImageGroup]:
    """The HIP code of all bundles in a part of a file."""
    position, end, lookalikes = start, source.size if end is None else end, 0
    while (position := source.find((BUNDLE_MAGIC, COMPRESSED_MAGIC), position, end)) >= 0:
        bundle = _read_bundle(source, position, end)
        if bundle is None:
            position, lookalikes = position + 1, lookalikes + 1
            if lookalikes > _MOST_LOOKALIKES:
                return
            continue
        for name, size in bundle.pieces:
            stored = bundle.stored * size // bundle.raw if bundle.compression != "none" else size
            yield _group(name, GpuMaker.HIP, stored, size, bundle.compression, section)
        position = bundle.end


def pe_sections(source: ByteSource) -> list[_Range] | None:
    """The sections of a PE file; None where it is none."""
    with suppress(BadInputError):
        if bytes(source.read(0, 2)) != PE_MAGIC:
            return None
        (offset,) = struct.unpack("<I", source.read(_PE_OFFSET, 4))
        mark, count, optional = _PE_HEADER.unpack(source.read(offset, _PE_HEADER.size))
        if mark != b"PE\0\0":
            return None
        table = source.read(offset + _PE_HEADER.size + optional, count * _PE_SECTION.size)
        return [
            _Range(name.rstrip(b"\0").decode("latin-1"), place, min(size, in_file) if size else in_file)
            for name, size, _, in_file, place in _PE_SECTION.iter_unpack(table)
            if place + in_file <= source.size
        ]
    return None


def _in_sections(source: ByteSource, sections: Iterable[_Range]) -> tuple[ImageGroup, ...]:
    return merge_groups(group for section in sections for group in _in_section(source, section))


def _in_section(source: ByteSource, section: _Range) -> Iterator[ImageGroup]:
    if section.name.startswith(_HIP_SECTIONS):
        yield from bundled_code(source, section.offset, section.offset + section.size, section.name)
    elif section.name.startswith(_SYCL_SECTIONS):
        target = section.name.removeprefix(BUNDLE_MAGIC.decode()).removeprefix("sycl-")
        label = target if target and target != section.name else "sycl"
        yield _group(label, GpuMaker.SYCL, section.size, section.size, "none", section.name)


def _read_bundle(source: ByteSource, offset: int, end: int) -> _Bundle | None:
    """The bundle that begins there; None for bytes that only look like one."""
    try:
        if bytes(source.read(offset, 4)) == COMPRESSED_MAGIC:
            return _read_compressed(source, offset, end)
        table = bytes(source.read(offset, min(_TABLE_SIZE, end - offset)))
        pieces, size = _read_table(table)
        return _Bundle(offset + size, "none", size, size, pieces) if offset + size <= end else None
    except (BadInputError, struct.error, ValueError, zstandard.ZstdError, zlib.error):
        return None


def _read_compressed(source: ByteSource, offset: int, end: int) -> _Bundle | None:
    _, version, method = struct.unpack("<4sHH", source.read(offset, 8))
    header, compression = _COMPRESSED_HEADERS.get(version), _METHODS.get(method)
    if header is None or compression is None:
        return None
    _, _, _, *sizes, _ = header.unpack(source.read(offset, header.size))
    if version == 1:  # does not say where it ends
        following = source.find(COMPRESSED_MAGIC, offset + header.size, end)
        sizes.insert(0, (following if following >= 0 else end) - offset)
    stored, raw = sizes
    if not header.size < stored <= end - offset or not raw:
        return None
    packed = source.read(offset + header.size, min(_PACKED_SIZE, stored - header.size))
    pieces, size = _read_table(_beginning(bytes(packed), compression))
    return _Bundle(offset + stored, compression, stored, raw, pieces) if size <= raw else None


def _beginning(packed: bytes, compression: str) -> bytes:
    """What the table of a compressed bundle is in."""
    if compression == "zlib":
        return zlib.decompressobj().decompress(packed, _TABLE_SIZE)
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)) as reader:
        return reader.read(_TABLE_SIZE)


def _read_table(data: bytes) -> tuple[tuple[tuple[str, int], ...], int]:
    """The pieces that are for GPUs, and the size of the whole bundle."""
    if not data.startswith(BUNDLE_MAGIC):
        raise ValueError(data[:8])
    (count,) = struct.unpack_from("<Q", data, len(BUNDLE_MAGIC))
    position = len(BUNDLE_MAGIC) + 8
    if not 0 < count <= _MOST_PIECES:
        raise ValueError(count)
    pieces, end = [], 0
    for _ in range(count):
        offset, size, length = _PIECE.unpack_from(data, position)
        position += _PIECE.size
        name = data[position : position + length]
        if length > _LONGEST_NAME or len(name) != length:
            raise ValueError(length)
        position += length
        end = max(end, offset + size)
        triple = name.decode("ascii")
        if not triple.startswith("host") and size:
            pieces.append((_architecture(triple), size))
    return tuple(pieces), max(end, position)


def _architecture(triple: str) -> str:
    """`gfx90a:xnack-` of `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-`."""
    start = triple.find("gfx")
    return triple[start:] if start >= 0 else triple


def amd_object(name: str, source: ByteSource, size: int) -> tuple[ImageGroup, ...]:
    """A file that is code for one of AMD's GPUs: which one its name says."""
    head = bytes(source.read(0, min(HEADER.size, source.size)))
    if len(head) < HEADER.size or not head.startswith(MAGIC) or HEADER.unpack(head)[2] != AMD_GPU:
        return ()
    named = _NAMED_GPU.search(name)
    return (_group(named[0] if named else "amdgcn", GpuMaker.HIP, size, size, "none", "file"),)


def _group(label: str, maker: GpuMaker, stored: int, raw: int, compression: str, section: str) -> ImageGroup:
    return ImageGroup(label, None, 1, stored, raw, {compression: 1}, {section: 1}, other=maker.label)
