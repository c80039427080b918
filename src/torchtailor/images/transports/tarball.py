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

from torchtailor.errors import BadInputError
from torchtailor.images.transports.content import file_pieces, reading
from torchtailor.trust import whole_number

_BLOCK = 512
_MEMBERS = 200_000  # a thousand times what real archives of images have
_NAME_LIMIT = 1 << 20  # of a header that holds a long name
_LINKS = 8
_AGAIN = "Fetch or build the archive again."
_CHECKSUM = slice(148, 156)
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
    if len(start) < _BLOCK or not _sum_is_right(start[:_BLOCK]):
        raise BadInputError(f"{where} is not a tar archive.", "Give what docker save or skopeo copy wrote.")


def _read(file: BinaryIO, where: str) -> tuple[dict[str, TarMember], set[str]]:
    descriptor = file.fileno()
    end = os.fstat(descriptor).st_size
    check_start(os.pread(descriptor, _BLOCK, 0), where)
    members: dict[str, TarMember] = {}
    twice: set[str] = set()
    extra: dict[str, str] = {}  # what headers before this one say of it
    position = 0
    while position < end:
        header = os.pread(descriptor, _BLOCK, position)
        if header.count(0) == len(header):
            break
        if len(header) < _BLOCK or not _sum_is_right(header):
            raise BadInputError(f"{where} is damaged at byte {position}: no tar header.", _AGAIN)
        kind = header[156:157]
        size: int | None = _number(header[124:136], where)
        if "size" in extra:
            size = whole_number(extra["size"])
        data = position + _BLOCK
        has_data = kind not in b"12345" or kind == b""
        if size is None or size < 0 or (has_data and data + size > end):
            raise BadInputError(f"{where} breaks off in the middle of a file.", _AGAIN)
        position = data + (-(-size // _BLOCK) * _BLOCK if has_data else 0)
        if kind in {b"L", b"K", b"x", b"g"}:
            if size > _NAME_LIMIT:
                raise BadInputError(f"{where} has a header of {size} bytes.", _AGAIN)
            extra |= _extra(kind, os.pread(descriptor, size, data))
            continue
        name = _inside(extra.get("path") or _name(header), where)
        if name in members:
            twice.add(name)
        if name:
            members[name] = _made(kind, data, size, name, extra.get("linkpath") or _text(header[157:257]))
        extra = {}
        if len(members) > _MEMBERS:
            raise BadInputError(f"{where} has more than {_MEMBERS} members.", "No archive of an image has.")
    return members, twice


def _made(kind: bytes, data: int, size: int, name: str, target: str) -> TarMember:
    if kind in {b"0", b"\0", b"7"}:
        return TarMember(_Kind.FILE, data, size)
    if kind == b"1":
        return TarMember(_Kind.LINK, data, 0, posixpath.normpath(target))
    if kind == b"2":  # one that leads out of the archive names no member, and is found missing when it is used
        return TarMember(_Kind.LINK, data, 0, posixpath.normpath(posixpath.join(posixpath.dirname(name), target)))
    return TarMember(_Kind.OTHER, data, 0)


def _inside(name: str, where: str) -> str:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts:
        raise BadInputError(f"{where} holds {name[:100]!r}, which leads out of it.", "Do not unpack this archive.")
    return "/".join(parts)


def _extra(kind: bytes, data: bytes) -> dict[str, str]:
    if kind == b"L":
        return {"path": _text(data)}
    if kind == b"K":
        return {"linkpath": _text(data)}
    return dict(_records(data)) if kind == b"x" else {}


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """The `length key=value` lines of a pax header that matter here."""
    while data:
        length = data.partition(b" ")[0]
        if not length.isdigit() or len(length) > 8 or not 0 < int(length) <= len(data):
            return
        record, data = data[: int(length)], data[int(length) :]
        key, _, value = record[len(length) + 1 :].removesuffix(b"\n").partition(b"=")
        if key in {b"path", b"linkpath", b"size"}:
            yield key.decode(), value.decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, where: str) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits or b"0", 8)
    except ValueError as error:
        raise BadInputError(f"{where} is damaged: a size that is no number.", _AGAIN) from error


def _sum_is_right(header: bytes) -> bool:
    digits = header[_CHECKSUM].strip(b" \0")
    expected = sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")
    try:
        return int(digits, 8) == expected
    except ValueError:
        return False
