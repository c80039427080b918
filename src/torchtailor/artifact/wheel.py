"""The files of a wheel, read where they are: nothing is unpacked to disk."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from isal import isal_zlib

from torchtailor.binary.inflate import InflateSource
from torchtailor.binary.source import BufferSource, ByteSource, open_source
from torchtailor.errors import BadInputError

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1

_BOMB_SIZE = 4 << 30  # a member larger than this must not also be
_BOMB_RATIO = 200  # this much smaller when packed
_MAX_TOTAL = 256 << 30

_AGAIN = "Fetch the wheel again and compare its hash with the index's."


class VerifiedSource(ByteSource, Protocol):
    """A source that knows its checksum."""

    def verify(self) -> None:
        """Raise BadInputError if the bytes are not those that were packed."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a wheel."""

    wheel: Path
    name: str
    size: int
    packed_size: int
    crc: int
    deflated: bool
    header_offset: int


def list_members(wheel: Path) -> tuple[Member, ...]:
    """All files of a wheel, after checking that its table is one a wheel may have."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise BadInputError(f"{wheel} is not a readable zip file: {error}.", _AGAIN) from error
    seen: set[str] = set()
    for info in infos:
        _check_name(wheel, info.filename)
        if info.filename in seen:
            raise BadInputError(f"{wheel} holds {info.filename} twice.", "Do not use this wheel.")
        seen.add(info.filename)
        if info.flag_bits & _ENCRYPTED:
            raise BadInputError(f"{wheel}: {info.filename} is encrypted.", "Do not use this wheel.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadInputError(
                f"{wheel}: {info.filename} is packed with method {info.compress_type}.",
                "Wheels are stored or deflated; pack it again.",
            )
        if info.file_size > _BOMB_SIZE and info.file_size > info.compress_size * _BOMB_RATIO:
            raise BadInputError(
                f"{wheel}: {info.filename} unpacks from {info.compress_size} to {info.file_size} bytes.",
                "That is a zip bomb, not a library.",
            )
    if sum(info.file_size for info in infos) > _MAX_TOTAL:
        raise BadInputError(f"{wheel} unpacks to more than {_MAX_TOTAL} bytes.", "That is no real wheel.")
    return tuple(
        Member(
            wheel,
            info.filename,
            info.file_size,
            info.compress_size,
            info.CRC,
            info.compress_type == zipfile.ZIP_DEFLATED,
            info.header_offset,
        )
        for info in infos
    )


def _check_name(wheel: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise BadInputError(f"{wheel} holds a file named {name!r}, outside the wheel.", "Do not use this wheel.")


@contextmanager
def open_member(member: Member) -> Iterator[VerifiedSource]:
    """The unpacked bytes of a member, for as long as the block runs."""
    with open_source(member.wheel) as wheel:
        start = _data_offset(wheel, member)
        stored = wheel.read(start, member.packed_size)
        if not member.deflated:
            yield _StoredSource(stored, member.crc)
            return
    # not through the map: its pages would count as memory of this process
    with member.wheel.open("rb") as file:

        def packed(offset: int, size: int) -> bytes:
            return os.pread(file.fileno(), min(size, member.packed_size - offset), start + offset)

        yield InflateSource(packed, member.size, member.crc)


class _StoredSource(BufferSource):
    """A member that is not packed."""

    __slots__ = ("_crc",)

    def __init__(self, stored: memoryview, crc: int) -> None:
        super().__init__(stored)
        self._crc = crc

    def verify(self) -> None:
        if isal_zlib.crc32(self._view) != self._crc:
            raise BadInputError("Stored bytes do not have the checksum they should have.", _AGAIN)


def begins_with(member: Member, magic: bytes) -> bool:
    """Whether a member's first bytes are these."""
    if member.size < len(magic):
        return False
    with open_member(member) as source:
        return bytes(source.read(0, len(magic))) == magic


def _data_offset(wheel: ByteSource, member: Member) -> int:
    """Where a member's bytes begin, after its local header, which must agree with the table."""
    header = wheel.read(member.header_offset, _LOCAL_HEADER.size)
    magic: bytes
    name_size: int
    extra_size: int
    magic, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    if magic != _LOCAL_MAGIC:
        raise BadInputError(f"{member.wheel}: {member.name} is not where the zip's table says.", _AGAIN)
    name_offset = member.header_offset + _LOCAL_HEADER.size
    own_name = bytes(wheel.read(name_offset, name_size))
    if own_name not in (member.name.encode(), member.name.encode("cp437", "replace")):
        raise BadInputError(f"{member.wheel}: {member.name} has another name in its own header.", _AGAIN)
    return name_offset + name_size + extra_size
