"""Tar archives that are read where they lie: the places of their members, and never a file unpacked."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from torchtailor.core.errors import BadInputError
from torchtailor.oci.tarstream import BLOCK, HARD_LINK, SYMLINK, LayerMember, TarReader, is_header
from torchtailor.oci.transports.content import file_pieces, reading

_MEMBERS = 200_000  # a thousand times what real archives of images have
_PIECE = 4 << 10  # headers only: what lies between them is not read
_LINKS = 8
_AGAIN = "Fetch or build the archive again."
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"\xfd7zXZ": ("xz", "xzcat"),
    b"BZh": ("bzip2", "bzcat"),
}


class _Kind(Enum):
    FILE = "file"
    LINK = "link"
    OTHER = "folder or device"


@dataclass(frozen=True, slots=True)
class TarMember:
    """Where the bytes of a member are, or which other member it is a link to."""

    kind: _Kind
    offset: int
    size: int
    target: str = ""


class TarFiles:
    """The members of a tar archive by name; names that lead out of it are refused."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        with reading(where):
            self._members, self._twice = _read(file, where)

    def size(self, name: str) -> int | None:
        member = self._member(name)
        return member.size if member else None

    @contextmanager
    def pieces(self, name: str) -> Iterator[Iterator[bytes]]:
        member = self._member(name)
        assert member is not None
        yield file_pieces(self._file, self._where, member.offset, member.size)

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a member."""
        member = self._member(name)
        return os.pread(self._file.fileno(), min(size, member.size), member.offset) if member else b""

    def path(self, name: str) -> Path | None:
        return None

    def close(self) -> None:
        self._file.close()

    def _member(self, name: str) -> TarMember | None:
        """The file of this name, where links lead."""
        at = name
        for _ in range(_LINKS):
            if at in self._twice:
                raise BadInputError(f"{self._where} holds {at[:100]!r} twice.", _AGAIN)
            member = self._members.get(at)
            if member is None or member.kind is _Kind.FILE:
                return member
            if member.kind is _Kind.OTHER:
                raise BadInputError(f"{name[:100]!r} of {self._where} is not a file.", _AGAIN)
            at = member.target
        raise BadInputError(f"{name[:100]!r} of {self._where} is a link that leads nowhere.", _AGAIN)


def check_start(start: bytes, where: str) -> None:
    """Refuse what is no tar archive by its first block, before gigabytes of it are read."""
    for magic, (what, tool) in _COMPRESSED.items():
        if start.startswith(magic):
            raise BadInputError(
                f"{where} is compressed with {what} as a whole.", f"Unpack it into a pipe: {tool} FILE | ... :-"
            )
    if not is_header(start[:BLOCK]):
        raise BadInputError(f"{where} is not a tar archive.", "Give what docker save or skopeo copy wrote.")


def _read(file: BinaryIO, where: str) -> tuple[dict[str, TarMember], set[str]]:
    start, end = os.pread(file.fileno(), BLOCK, 0), os.fstat(file.fileno()).st_size
    check_start(start, where)
    members: dict[str, TarMember] = {}
    twice: set[str] = set()
    position = 0

    def pieces() -> Iterator[bytes]:
        nonlocal position
        while piece := os.pread(file.fileno(), _PIECE, position):
            position += len(piece)
            yield piece

    def seek(size: int) -> bool:
        nonlocal position
        position += size
        return position <= end

    reader = TarReader(pieces(), where, seek)
    for member in reader:
        name = _inside(_text(member.name), where)
        if name in members:
            twice.add(name)
        if name:
            members[name] = _made(member, reader.offset, name)
        if len(members) > _MEMBERS:
            raise BadInputError(f"{where} has more than {_MEMBERS} members.", "No archive of an image has.")
    return members, twice


def _made(member: LayerMember, offset: int, name: str) -> TarMember:
    if member.is_file and not member.sparse:
        return TarMember(_Kind.FILE, offset, member.size)
    if member.kind == HARD_LINK:
        return TarMember(_Kind.LINK, offset, 0, posixpath.normpath(_text(member.link)))
    if member.kind == SYMLINK:
        # one that leads out of the archive names no member, and is found missing when it is used
        target = posixpath.join(posixpath.dirname(name), _text(member.link))
        return TarMember(_Kind.LINK, offset, 0, posixpath.normpath(target))
    return TarMember(_Kind.OTHER, offset, 0)


def _inside(name: str, where: str) -> str:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts:
        raise BadInputError(f"{where} holds {name[:100]!r}, which leads out of it.", "Do not unpack this archive.")
    return "/".join(parts)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
