"""The zip inside a wheel, read strictly: what a wheel must not hold is an error before anything is unpacked."""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from torchtailor.code.binary.inflate import InflateSource, ReadAt, Unpacker
from torchtailor.code.binary.source import blamed_on
from torchtailor.core.disk import open_plain
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError
from torchtailor.core.trust import Limit

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1 | 0x40 | 0x2000

# Real wheels: torch is 1.8 GB unpacked at a ratio of 2, headers of CUDA a ratio of 10. Deflate can reach 1000.
MAX_MEMBERS = 200_000  # torch has 12,000 files
MAX_TOTAL = 64 << 30
MAX_RATIO = 100
SMALL = 64 << 20  # below this a high ratio does no harm

_PLAIN_NAME = re.compile(r"(?!.*\.(?:/|\Z))(?:[A-Za-z0-9_.+-]{2,}|[A-Za-z0-9_+-])(?:/[A-Za-z0-9_.+-]+)*/?")
_AGAIN = "Fetch the wheel again and compare its hash with the index's."
_DO_NOT_USE = "Do not use this wheel."
_BOMB = "That is a zip bomb; do not unpack it."


class SeekableFile(Protocol):
    """What a zip's table can be read from: a file here, or one elsewhere of which only parts are fetched."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...


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
            self._file = open_plain(path)
        except FileNotFoundError as error:
            raise NoMatchError(f"{path} does not exist.", "Check the path.") from error
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from error
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            members = read_table(self._file, str(path), self.size)
            self.members = _check_layout(_reader(self.fileno), str(path), self.size, members)
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
        """A small member whole, such as RECORD; no real one is larger."""
        member = self.members[name]
        if member.size > Limit.RECORD or (name.endswith("/METADATA") and member.size > Limit.METADATA):
            raise BadInputError(f"{self.path}: {name} has {member.size} bytes, as no real one does.", _DO_NOT_USE)
        return b"".join(self.chunks(member))

    def chunks(self, member: Member) -> Iterator[bytes]:
        """The unpacked bytes of a member, checked against the size and checksum of the zip's table."""
        with blamed_on(f"{self.path}: {member.name}"):
            yield from member_source(_reader(self.fileno), member).chunks()

    def head(self, member: Member, size: int) -> bytes:
        """The first bytes of a member, fewer where it has fewer."""
        with blamed_on(f"{self.path}: {member.name}"):
            unpacker = Unpacker(_packed(_reader(self.fileno), member), deflated=member.deflated)
            return unpacker.take(min(size, member.size))

    def extract(self, folder: Path) -> None:
        """Unpack all files into a folder; what is executable in the wheel is executable there."""
        for member in self.members.values():
            place = folder / member.name
            if member.is_dir:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                file.writelines(self.chunks(member))
                if member.mode & 0o111:
                    os.fchmod(file.fileno(), 0o755)


@contextmanager
def open_member(wheel: Path, member: Member) -> Iterator[InflateSource]:
    """Random access to the unpacked bytes of a member, without reading the wheel's table again.

    An error in the bytes while the block runs names this member of this wheel.
    """
    with wheel.open("rb") as file, blamed_on(f"{wheel}: {member.name}"):
        yield member_source(_reader(file.fileno()), member)


def head_of_member(wheel: Path, member: Member, size: int) -> bytes:
    """The first bytes of a member, fewer where it has fewer; no more than these are unpacked."""
    with wheel.open("rb") as file, blamed_on(f"{wheel}: {member.name}"):
        return Unpacker(_packed(_reader(file.fileno()), member), deflated=member.deflated).take(min(size, member.size))


def member_source(read: ReadAt, member: Member) -> InflateSource:
    """Random access to the unpacked bytes of a member of the zip that `read` reads from."""
    return InflateSource(_packed(read, member), member.size, member.crc, deflated=member.deflated)


def _packed(read: ReadAt, member: Member) -> ReadAt:
    return lambda offset, size: read(member.data_offset + offset, min(size, member.packed_size - offset))


def _reader(fd: int) -> ReadAt:
    return lambda offset, size: os.pread(fd, size, offset)


def read_table(file: SeekableFile, owner: str, packed: int) -> tuple[Member, ...]:
    """The members that the table of a zip lists, all of them such as a wheel may have; `packed` is the zip's size."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError) as error:
        raise BadInputError(f"{owner} is not a readable wheel: {str(error).rstrip('.')}.", _AGAIN) from error
    if len(infos) > MAX_MEMBERS:
        raise BadInputError(f"{owner} holds {len(infos)} files, too many for a wheel.", _AGAIN)
    for info in infos:
        _check(owner, info)
    _check_names(owner, [info.filename for info in infos])
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL or (total > SMALL and total > packed * MAX_RATIO):
        raise BadInputError(f"{owner} unpacks from {packed} to {total} bytes.", _BOMB)
    return tuple(
        Member(
            name=info.filename,
            size=info.file_size,
            packed_size=info.compress_size,
            crc=info.CRC,
            deflated=info.compress_type == zipfile.ZIP_DEFLATED,
            mode=info.external_attr >> 16,
            header_offset=info.header_offset,
        )
        for info in infos
    )


def check_name(owner: str, name: str) -> None:
    """A file must stay inside the folder it is unpacked to."""
    if _PLAIN_NAME.fullmatch(name):  # nearly all
        return
    path = PurePosixPath(name)
    drive = len(name) > 1 and name[1] == ":"
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or drive:
        raise BadInputError(f"{owner} holds a file named {name!r}, outside the wheel.", _DO_NOT_USE)
    if str(path) != name.rstrip("/"):
        raise BadInputError(f"{owner} holds a file named {name!r}, which has a second spelling.", _DO_NOT_USE)


def _check_names(owner: str, names: list[str]) -> None:
    """No two members may be unpacked to the same place."""
    seen: set[str] = set()
    folders: set[str] = set()
    for name in names:
        plain = name.rstrip("/")
        if plain in seen:
            raise BadInputError(f"{owner} holds {name} twice.", _DO_NOT_USE)
        seen.add(plain)
        folder = plain if name.endswith("/") else plain.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    for name in names:
        if name in folders:
            raise BadInputError(f"{owner} holds {name} as a file and as a folder.", _DO_NOT_USE)


def _check(owner: str, info: zipfile.ZipInfo) -> None:
    name = info.filename
    check_name(owner, name)
    if info.orig_filename != name:  # zipfile cuts names at a NUL
        raise BadInputError(f"{owner} holds a file named {info.orig_filename!r}.", _DO_NOT_USE)
    if info.flag_bits & _ENCRYPTED:
        raise BadInputError(f"{owner}: {name} is encrypted.", f"Wheels never are. {_DO_NOT_USE}")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInputError(
            f"{owner}: {name} is packed with method {info.compress_type}.",
            "Wheels are stored or deflated; pack it again.",
        )
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise BadInputError(
            f"{owner}: {name} is stored in {info.compress_size} bytes but {info.file_size} long.", _AGAIN
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise BadInputError(f"{owner}: {name} is a symbolic link.", f"Wheels cannot hold links. {_DO_NOT_USE}")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadInputError(f"{owner}: {name} is neither a file nor a folder.", _DO_NOT_USE)
    if info.file_size > SMALL and info.file_size > info.compress_size * MAX_RATIO:
        raise BadInputError(f"{owner}: {name} unpacks from {info.compress_size} to {info.file_size} bytes.", _BOMB)


def _check_layout(read: ReadAt, owner: str, size: int, members: tuple[Member, ...]) -> dict[str, Member]:
    """The members with the places of their bytes; members must not overlap."""
    placed: dict[str, Member] = {}
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise BadInputError(f"{owner}: {member.name} overlaps the file before it.", _DO_NOT_USE)
        found = placed[member.name] = locate(read, owner, size, member)
        end = found.data_offset + found.packed_size
    return {member.name: placed[member.name] for member in members}


def locate(read: ReadAt, owner: str, size: int, member: Member) -> Member:
    """A member with the place of its bytes, behind its own header, which must agree with the table."""
    name = member.name.encode()
    header = read(member.header_offset, _LOCAL_HEADER.size + len(name))
    if len(header) < _LOCAL_HEADER.size or header[:4] != _LOCAL_MAGIC:
        raise BadInputError(f"{owner}: {member.name} is not where the zip's table says.", _AGAIN)
    *_, name_size, extra_size = _LOCAL_HEADER.unpack_from(header)
    own_name = header[_LOCAL_HEADER.size :][:name_size]
    if len(own_name) != name_size or own_name not in (name, member.name.encode("cp437", "replace")):
        raise BadInputError(f"{owner}: {member.name} has another name in its own header.", _DO_NOT_USE)
    start = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    if start + member.packed_size > size:
        raise BadInputError(f"{owner}: {member.name} ends after the file's end.", _AGAIN)
    return replace(member, data_offset=start)
