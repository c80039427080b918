"""A library that only says why it is not there.

It has no code and needs one other library, whose name is the sentence: the dynamic linker looks for that, does not find
it, and puts its name into the error that programs show. So it works for every way of loading, in every language.
"""

from __future__ import annotations

import struct

from torchtailor.code.binary.elf_headers import (
    DYNAMIC_ENTRY,
    HEADER,
    MAGIC,
    PROGRAM_HEADER,
    SYMBOL,
    DynamicTag,
    ElfMachine,
    FileType,
    SegmentType,
)

_IDENT = MAGIC + b"\x02\x01\x01" + bytes(9)  # 64-bit, little-endian, version 1
_SEGMENTS = 3
_TEXT_AT = HEADER.size + _SEGMENTS * PROGRAM_HEADER.size
_MARK = b"\0torchtailor-left-out\0"
_HASH = struct.pack("<4I", 1, 1, 0, 0)  # one bucket and one symbol, the null symbol
_READ_WRITE = 6  # linkers before glibc 2.35 write into the dynamic table
_LARGEST_PAGE = 1 << 16
_LONGEST_NAME = 255  # else the linker complains about the length of the name

HEAD_SIZE = _TEXT_AT + len(_MARK)  # bytes that tell whether a file is one


def placeholder(machine: ElfMachine, soname: str, sentence: str) -> bytes:
    """The bytes of a library whose loading fails with this sentence."""
    text = bytearray(_MARK)
    name_at = len(text)
    text += soname.encode() + b"\0"
    sentence_at = len(text)
    text += as_library_name(sentence) + b"\0"
    hash_at = _aligned(_TEXT_AT + len(text))
    symbols_at = _aligned(hash_at + len(_HASH))
    dynamic_at = symbols_at + SYMBOL.size
    entries = (
        (DynamicTag.NEEDED, sentence_at),
        (DynamicTag.SONAME, name_at),
        (DynamicTag.HASH, hash_at),
        (DynamicTag.STRTAB, _TEXT_AT),
        (DynamicTag.SYMTAB, symbols_at),
        (DynamicTag.STRSZ, len(text)),
        (DynamicTag.SYMENT, SYMBOL.size),
        (DynamicTag.NULL, 0),
    )
    dynamic = b"".join(DYNAMIC_ENTRY.pack(*entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    numbers = (HEADER.size, PROGRAM_HEADER.size, _SEGMENTS, 0, 0, 0)
    segments = (
        (SegmentType.LOAD, 0, size, _LARGEST_PAGE),
        (SegmentType.DYNAMIC, dynamic_at, len(dynamic), 8),
        (SegmentType.GNU_STACK, 0, 0, 16),
    )
    data = bytearray(size)
    data[: HEADER.size] = HEADER.pack(_IDENT, FileType.SHARED, machine, 1, 0, HEADER.size, 0, 0, *numbers)
    for index, (kind, at, length, alignment) in enumerate(segments):
        fields = (kind, _READ_WRITE, at, at, at, length, length, alignment)
        PROGRAM_HEADER.pack_into(data, HEADER.size + index * PROGRAM_HEADER.size, *fields)
    data[_TEXT_AT : _TEXT_AT + len(text)] = text
    data[hash_at : hash_at + len(_HASH)] = _HASH
    data[dynamic_at:] = dynamic
    return bytes(data)


def is_placeholder(head: bytes) -> bool:
    """Whether a file is one of these, by its first `HEAD_SIZE` bytes."""
    return head.startswith(MAGIC) and head[_TEXT_AT:HEAD_SIZE] == _MARK


def machine_of(head: bytes) -> ElfMachine | None:
    """The processor of a shared library, by its first bytes; None where it is none that we can write."""
    if len(head) < HEADER.size or not head.startswith(_IDENT[:7]):
        return None
    _, kind, machine, *_ = HEADER.unpack(head[: HEADER.size])
    known = kind == FileType.SHARED and machine in ElfMachine._value2member_map_
    return ElfMachine(machine) if known else None


def as_library_name(sentence: str) -> bytes:
    """A sentence that the linker takes as the name of a library: a slash makes it a path, and `$` a variable."""
    plain = sentence.replace("/", "|").replace("$", "_").replace("\0", "").encode()
    return plain[:_LONGEST_NAME].decode(errors="ignore").encode()


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
