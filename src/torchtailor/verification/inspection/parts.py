"""What the bytes of a file are: one class for each byte, so that classes add up to the file."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Section, SectionType
from torchtailor.code.gpucode.fatbin import Image, Part
from torchtailor.code.gpucode.foreign import holds_foreign_code
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, UNWIND_TABLES, LibraryCode

CONTAINERS = "containers"  # headers of containers, and what pads them

_EXECUTE = 1  # PF_X
_RELOCATIONS = frozenset({SectionType.RELA, SectionType.REL, SectionType.RELR})
_SYMBOLS = frozenset({
    SectionType.SYMTAB, SectionType.STRTAB, SectionType.DYNSYM, SectionType.HASH, SectionType.GNU_HASH,
    SectionType.VERDEF, SectionType.VERNEED, SectionType.VERSYM,
})  # fmt: skip


class ByteClass(Enum):
    """What a byte is for."""

    GPU = "GPU code"
    HOST = "host code"
    DATA = "data"
    UNWINDING = "unwind tables"
    RELOCATIONS = "relocations"
    SYMBOLS = "symbols"
    DEBUG = "debug information"
    FRAME = "ELF headers and padding"
    PYTHON = "Python"
    HEADERS = "C headers"
    OTHER = "other files"
    ZIP = "zip records"


_BY_SUFFIX = {
    **dict.fromkeys((".py", ".pyc", ".pyi", ".pyx", ".pxd"), ByteClass.PYTHON),
    **dict.fromkeys((".h", ".hpp", ".hxx", ".hh", ".cuh", ".inc", ".inl", ".ipp", ".h++"), ByteClass.HEADERS),
}


class ByteSpan(NamedTuple):
    """Bytes [start, end) of a file that are one thing."""

    start: int
    end: int
    kind: ByteClass
    code: str = ""  # of GPU code, the architecture


# Files that are of one class, whole.
PLAIN_FILES = (ByteClass.PYTHON, ByteClass.HEADERS, ByteClass.OTHER)


def class_of_file(name: str) -> ByteClass:
    """What a file is that holds no machine code, by its name."""
    return _BY_SUFFIX.get(os.path.splitext(name)[1].lower(), ByteClass.OTHER)  # noqa: PTH122 (a Path each is slow)


def spans_of(elf: ElfFile, code: LibraryCode) -> Iterator[ByteSpan]:
    """All bytes of an ELF file in their order, each once."""
    gpu = sorted(_gpu_spans(code))
    starts = [span.start for span in gpu]
    at = 0
    for section in sorted(_section_spans(elf)):
        if section.start > at:
            yield ByteSpan(at, section.start, ByteClass.FRAME)
        at = section.start
        for span in gpu[bisect_left(starts, section.start) : bisect_left(starts, section.end)]:
            if span.start > at:
                yield section._replace(start=at, end=span.start)
            yield span
            at = span.end
        if section.end > at:
            yield section._replace(start=at)
            at = section.end
    if at < elf.size:
        yield ByteSpan(at, elf.size, ByteClass.FRAME)


def _gpu_spans(code: LibraryCode) -> Iterator[ByteSpan]:
    for found in code.containers:
        container, at = found.container, found.container.offset
        for image in container.entries:
            if image.offset > at:
                yield ByteSpan(at, image.offset, ByteClass.GPU, CONTAINERS)
            yield from _image_spans(image)
            at = image.end
        if container.end > at:
            yield ByteSpan(at, container.end, ByteClass.GPU, CONTAINERS)


def _image_spans(image: Image) -> Iterator[ByteSpan]:
    """One span; of images that were compressed together each has its share, as long as its part of the whole."""
    held: Iterable[Image | Part] = image.pieces
    total, at = sum(part.size for part in image.parts), image.offset
    for piece in held:
        share = image.end - at if isinstance(piece, Image) or not total else (image.end - at) * piece.size // total
        yield ByteSpan(at, at + share, ByteClass.GPU, piece.label)
        at, total = at + share, total - (0 if isinstance(piece, Image) else piece.size)


def _section_spans(elf: ElfFile) -> Iterator[ByteSpan]:
    """What the sections of a file are; of a file without any, its segments."""
    if elf.sections:
        for section in elf.sections:
            if section.in_file:
                code = CONTAINERS if _only_gpu_code(section) else ""
                yield ByteSpan(section.offset, section.file_end, _class_of(section), code)
        return
    for segment in elf.loads:
        if segment.file_size:
            kind = ByteClass.HOST if segment.flags & _EXECUTE else ByteClass.DATA
            yield ByteSpan(segment.offset, segment.file_end, kind)


def _only_gpu_code(section: Section) -> bool:
    return section.name in CONTAINER_SECTIONS or holds_foreign_code(section.name)


def _class_of(section: Section) -> ByteClass:
    if _only_gpu_code(section):
        return ByteClass.GPU
    if section.name.startswith((".debug_", ".zdebug_", ".gdb_index")):
        return ByteClass.DEBUG
    if section.name in UNWIND_TABLES:
        return ByteClass.UNWINDING
    if section.executable:
        return ByteClass.HOST
    if section.type in _RELOCATIONS:
        return ByteClass.RELOCATIONS
    if section.type in _SYMBOLS:
        return ByteClass.SYMBOLS
    return ByteClass.DATA if section.allocated else ByteClass.FRAME
