"""The zip inside a wheel, read strictly: what a wheel must not hold is an error before anything is unpacked."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torchtailor.errors import BadInputError, EnvironmentProblem

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1 | 0x40 | 0x2000

# Real wheels: torch is 1.8 GB unpacked at a ratio of 2, headers of CUDA a ratio of 10. Deflate can reach 1000.
MAX_MEMBERS = 1_000_000
MAX_TOTAL = 64 << 30
MAX_RATIO = 100
SMALL = 64 << 20  # below this a high ratio does no harm

_INPUT_STEP = 1 << 18
_OUTPUT_STEP = 1 << 20
_AGAIN = "fetch the wheel again and compare its hash with the index's"
_DO_NOT_USE = "do not use this wheel"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the zip; `mode` is the Unix mode, 0 where the zip has none."""

    name: str
    size: int
    packed_size: int
    crc: int
    deflated: bool
    mode: int
    header_offset: int
    data_offset: int = 0  # of the packed bytes

    @property
    def is_dir(self) -> bool:
        return self.name.endswith("/")


class WheelArchive:
    """An open wheel: its members, and their bytes both packed and unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except FileNotFoundError as error:
            raise BadInputError(f"{path} does not exist", "check the path") from error
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            members = tuple(_members(path))
            placed = _check_layout(path, self._file.fileno(), members)
            self.members = {member.name: placed[member.name] for member in members}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> WheelArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def files(self) -> Iterator[Member]:
        return (member for member in self.members.values() if not member.is_dir)

    def read(self, name: str) -> bytes:
        """A small member whole."""
        return b"".join(self.chunks(self.members[name]))

    def chunks(self, member: Member) -> Iterator[bytes]:
        """The unpacked bytes of a member, checked against the size and checksum of the zip's table."""
        return unpack(self.fileno, member, self.path.name)

    def begins_with(self, member: Member, magic: bytes) -> bool:
        if member.size < len(magic):
            return False
        return next(_raw_chunks(self.fileno, member, self.path.name), b"").startswith(magic)


@contextmanager
def open_member(wheel: Path, member: Member) -> Iterator[Iterator[bytes]]:
    """The unpacked bytes of a member, without reading the wheel's table again."""
    with wheel.open("rb") as file:
        yield unpack(file.fileno(), member, wheel.name)


def unpack(fd: int, member: Member, owner: str) -> Iterator[bytes]:
    """The unpacked bytes of a member in pieces of a megabyte at most, checked when the last one was taken."""
    from isal import isal_zlib

    crc = unpacked = 0
    for chunk in _raw_chunks(fd, member, owner):
        unpacked += len(chunk)
        if unpacked > member.size:
            raise BadInputError(f"{owner}: {member.name} unpacks to more than the zip's table says", _DO_NOT_USE)
        crc = isal_zlib.crc32(chunk, crc)
        yield chunk
    if unpacked != member.size:
        raise BadInputError(f"{owner}: {member.name} ends {member.size - unpacked} bytes too early", _AGAIN)
    if crc != member.crc:
        raise BadInputError(f"{owner}: {member.name} does not have the checksum it should have", _AGAIN)


def _raw_chunks(fd: int, member: Member, owner: str) -> Iterator[bytes]:
    return _inflate(fd, member, owner) if member.deflated else _stored(fd, member)


def _stored(fd: int, member: Member) -> Iterator[bytes]:
    start, end = member.data_offset, member.data_offset + member.packed_size
    for offset in range(start, end, _INPUT_STEP):
        yield os.pread(fd, min(_INPUT_STEP, end - offset), offset)


def _inflate(fd: int, member: Member, owner: str) -> Iterator[bytes]:
    from isal import igzip_lib, isal_zlib

    inflater = isal_zlib.decompressobj(-15)
    try:
        for packed in _stored(fd, member):
            # A step of packed bytes can unpack to a thousand times its size, so take it in bounded pieces.
            chunk: bytes = inflater.decompress(packed, _OUTPUT_STEP)
            while chunk:
                yield chunk
                chunk = b"" if inflater.eof else inflater.decompress(inflater.unconsumed_tail, _OUTPUT_STEP)
            if inflater.eof:
                break
    except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub calls the class an instance
        raise BadInputError(f"{owner}: {member.name} is damaged: {error}", _AGAIN) from error


def _members(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError) as error:
        raise BadInputError(f"{path} is not a readable wheel: {error}", _AGAIN) from error
    if len(infos) > MAX_MEMBERS:
        raise BadInputError(f"{path.name} holds {len(infos)} files", "that is no real wheel")
    seen: set[str] = set()
    for info in infos:
        _check(path, info)
        if info.filename in seen:
            raise BadInputError(f"{path.name} holds {info.filename} twice", _DO_NOT_USE)
        seen.add(info.filename)
    _check_total(path, sum(info.file_size for info in infos))
    for info in infos:
        yield Member(
            name=info.filename,
            size=info.file_size,
            packed_size=info.compress_size,
            crc=info.CRC,
            deflated=info.compress_type == zipfile.ZIP_DEFLATED,
            mode=info.external_attr >> 16,
            header_offset=info.header_offset,
        )


def check_name(owner: str, name: str) -> None:
    """A file must stay inside the folder it is unpacked to."""
    path = PurePosixPath(name)
    drive = len(name) > 1 and name[1] == ":"
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or drive:
        raise BadInputError(f"{owner} holds a file named {name!r}, outside the wheel", _DO_NOT_USE)
    if str(path) != name.rstrip("/"):
        raise BadInputError(f"{owner} holds a file named {name!r}, which has a second spelling", _DO_NOT_USE)


def _check(path: Path, info: zipfile.ZipInfo) -> None:
    owner, name = path.name, info.filename
    check_name(owner, name)
    if info.orig_filename != name:  # zipfile cuts names at a NUL
        raise BadInputError(f"{owner} holds a file named {info.orig_filename!r}", _DO_NOT_USE)
    if info.flag_bits & _ENCRYPTED:
        raise BadInputError(f"{owner}: {name} is encrypted", "wheels never are; " + _DO_NOT_USE)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInputError(
            f"{owner}: {name} is packed with method {info.compress_type}", "wheels are stored or deflated"
        )
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise BadInputError(
            f"{owner}: {name} is stored in {info.compress_size} bytes but {info.file_size} long", _AGAIN
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise BadInputError(f"{owner}: {name} is a symbolic link", "wheels cannot hold links; " + _DO_NOT_USE)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadInputError(f"{owner}: {name} is neither a file nor a folder", _DO_NOT_USE)
    if info.file_size > SMALL and info.file_size > info.compress_size * MAX_RATIO:
        raise BadInputError(
            f"{owner}: {name} unpacks from {info.compress_size} to {info.file_size} bytes", "that is a zip bomb"
        )


def _check_total(path: Path, total: int) -> None:
    packed = path.stat().st_size
    if total > MAX_TOTAL or (total > SMALL and total > packed * MAX_RATIO):
        raise BadInputError(f"{path.name} unpacks from {packed} to {total} bytes", "that is a zip bomb")


def _check_layout(path: Path, fd: int, members: tuple[Member, ...]) -> dict[str, Member]:
    """The members with the places of their bytes; local headers must agree with the table, and members not overlap."""
    placed: dict[str, Member] = {}
    size = os.fstat(fd).st_size
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise BadInputError(f"{path.name}: {member.name} overlaps the file before it", _DO_NOT_USE)
        header = os.pread(fd, _LOCAL_HEADER.size, member.header_offset)
        if len(header) < _LOCAL_HEADER.size or header[:4] != _LOCAL_MAGIC:
            raise BadInputError(f"{path.name}: {member.name} is not where the zip's table says", _AGAIN)
        *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        name_offset = member.header_offset + _LOCAL_HEADER.size
        own_name = os.pread(fd, name_size, name_offset)
        if own_name not in (member.name.encode(), member.name.encode("cp437", "replace")):
            raise BadInputError(f"{path.name}: {member.name} has another name in its own header", _DO_NOT_USE)
        start = name_offset + name_size + extra_size
        end = start + member.packed_size
        if end > size:
            raise BadInputError(f"{path.name}: {member.name} ends after the file's end", _AGAIN)
        placed[member.name] = replace(member, data_offset=start)
    return placed
