"""Tar archives as a stream: every member with its header blocks as they are, so that what is not changed is copied.

for member in (reader := TarReader(pieces, "layer 3")):
    if member.number in new_sizes:
        out.write(with_size(member, new_sizes[member.number]))

Formats (v7, ustar, GNU, PAX), owners, times, extended attributes and sparse maps survive because their bytes do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from torchtailor.core.errors import BadInputError

BLOCK = 512
REGULAR = frozenset((b"0", b"\0", b"7"))
HARD_LINK, SYMLINK, FOLDER = b"1", b"2", b"5"
GLOBAL = b"g"

_HEADER_ONLY = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # whatever size they say, nothing follows
_PAX, _LONG_NAME, _LONG_LINK, _SPARSE = b"x", b"L", b"K", b"S"
_MOST_HEADERS = 16 << 20  # bytes before one member; real ones have a few kB of extended attributes
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
_EIGHT_GIB = 8**11
_OF_OWNER = frozenset((b"uid", b"gid", b"uname", b"gname", b"mtime", b"SCHILY.xattr.security.selinux"))
_OCTAL = re.compile(rb"[0-7]*")
_AGAIN = "Fetch or build the image again."


@dataclass(frozen=True, slots=True)
class LayerMember:
    """One member: where it stands, what it is, and the blocks before its data."""

    number: int
    kind: bytes
    name: bytes  # as it is written, with any ./ or / before it
    link: bytes
    mode: int
    size: int  # of the data that follow
    blocks: bytes
    sparse: bool = False  # its data begin with, or are described by, a map of holes

    @property
    def is_file(self) -> bool:
        """Whether its data are the content of a file (v7 marks a folder by a slash only)."""
        return self.kind in REGULAR and not self.name.endswith(b"/")

    @property
    def is_folder(self) -> bool:
        return self.kind == FOLDER or (self.kind in REGULAR and self.name.endswith(b"/"))


class TarReader:
    """Goes through the members once; the data of one are read before the next is asked for, or skipped.

    What global headers say is not taken for the members, as the tools that unpack layers do not: else one of them could
    rename all files behind it.
    """

    def __init__(self, pieces: Iterable[bytes], where: str, seek: Callable[[int], bool] | None = None) -> None:
        """`seek` goes on so many bytes without reading them, and says whether they are there."""
        self._pieces = iter(pieces)
        self._seek = seek
        self._begun = 0  # where the buffer begins
        self._buffer = b""
        self._at = 0
        self._where = where
        self._left = 0  # of the member's data
        self._padding = 0
        self._trailer = b""

    def __iter__(self) -> Iterator[LayerMember]:
        number = 0
        while (member := self._next(number)) is not None:
            self._left, self._padding = member.size, -member.size % BLOCK
            yield member
            self._skip_data()
            self.padding()
            number += 1

    @property
    def offset(self) -> int:
        """Where what is read next stands in the archive."""
        return self._begun + self._at

    def data(self) -> Iterator[bytes]:
        """What is left of the data of the member, in pieces."""
        while self._left:
            if self._at == len(self._buffer) and not self._fill():
                self._cut_short()
            piece = self._buffer[self._at : self._at + self._left]
            self._at += len(piece)
            self._left -= len(piece)
            yield piece

    def head(self, size: int) -> bytes:
        """The next so many bytes of the data, or what there is of them."""
        data = self._take(min(size, self._left))
        self._left -= len(data)
        return data

    def padding(self) -> bytes:
        """What fills the last block of the data; it need not be zeros."""
        data, self._padding = self._take(self._padding), 0
        return data

    def trailer(self) -> Iterator[bytes]:
        """What follows the last member: blocks of zeros, as they are."""
        yield self._trailer
        self._trailer = b""
        while self._at < len(self._buffer) or self._fill():
            yield self._buffer[self._at :]
            self._at = len(self._buffer)

    def _skip_data(self) -> None:
        beyond = self._left - (len(self._buffer) - self._at)
        if self._seek and beyond > 0:
            if not self._seek(beyond):
                self._cut_short()
            self._begun += len(self._buffer) + beyond
            self._buffer, self._at, self._left = b"", 0, 0
        for _ in self.data():
            pass

    def _fill(self) -> bool:
        for piece in self._pieces:
            if piece:
                self._begun += len(self._buffer)
                self._buffer, self._at = piece, 0
                return True
        return False

    def _take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        end = self._at + size
        if end <= len(self._buffer):
            data = self._buffer[self._at : end]
            self._at = end
            return data
        parts = [self._buffer[self._at :]]
        size -= len(parts[0])
        self._at = len(self._buffer)
        while size:
            if not self._fill():
                self._cut_short()
            parts.append(self._buffer[:size])
            self._at = len(parts[-1])
            size -= len(parts[-1])
        return b"".join(parts)

    def _header(self) -> bytes | None:
        """The next block; None where the archive ends, with or without the zeros that should say so."""
        if self._at == len(self._buffer) and not self._fill():
            return None
        block = self._take(BLOCK)
        if block[0] == 0 and not block.strip(b"\0"):
            self._trailer = block
            return None
        return block

    def _next(self, number: int) -> LayerMember | None:
        blocks: list[bytes] = []
        total = 0
        own: dict[bytes, bytes] = {}
        long_name = long_link = b""
        while (header := self._header()) is not None:
            if not is_header(header):
                self._wrong("is not a tar archive, or is damaged")
            kind = header[156:157]
            size = _number(header[_SIZE], self._where)
            blocks.append(header)
            if kind not in (_PAX, GLOBAL, _LONG_NAME, _LONG_LINK):
                return self._member(number, header, blocks, own, long_name, long_link)
            total += size + BLOCK
            if total > _MOST_HEADERS:
                self._wrong(f"has {total} bytes of headers before one file, which no real one has")
            data = self._take(size)
            blocks += (data, self._take(-size % BLOCK))
            if kind == GLOBAL:
                _records(data, self._where)
                if len(blocks) == 3:  # on its own, as it always is but by accident
                    return LayerMember(number, GLOBAL, b"", b"", 0, 0, b"".join(blocks))
            elif kind == _PAX:
                own.update(_records(data, self._where))
            elif kind == _LONG_NAME:
                long_name = data.split(b"\0", 1)[0]
            else:
                long_link = data.split(b"\0", 1)[0]
        if blocks:
            self._wrong("ends in the middle of a header")
        return None

    def _member(
        self,
        number: int,
        header: bytes,
        blocks: list[bytes],
        records: dict[bytes, bytes],
        long_name: bytes,
        long_link: bytes,
    ) -> LayerMember:
        kind = header[156:157]
        name = header[:100].split(b"\0", 1)[0]
        if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
            name = prefix + b"/" + name
        name = long_name or records.get(b"GNU.sparse.name") or records.get(b"path") or name
        link = long_link or records.get(b"linkpath") or header[157:257].split(b"\0", 1)[0]
        size = _number(header[_SIZE], self._where)
        if (said := records.get(b"size")) is not None:
            if not said.isdigit() or len(said) > 18:
                self._wrong(f"gives {name[:100]!r} the size {said[:20]!r}")
            size = int(said)
        if kind in _HEADER_ONLY:
            size = 0
        if b"\0" in name or b"\0" in link:
            self._wrong("has a name with a zero byte in it")
        sparse = kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in records)
        if kind == _SPARSE and header[482]:
            while True:
                more = self._take(BLOCK)
                blocks.append(more)
                if sum(map(len, blocks)) > _MOST_HEADERS:
                    self._wrong("has a sparse file with too many holes")
                if not more[504]:
                    break
        mode = _number(header[100:108], self._where) & 0o7777
        return LayerMember(number, kind, name, link, mode, size, b"".join(blocks), sparse)

    def _cut_short(self) -> NoReturn:
        self._wrong("ends in the middle of a file")

    def _wrong(self, what: str) -> NoReturn:
        raise BadInputError(f"{self._where} {what}.", _AGAIN)


def is_header(block: bytes) -> bool:
    """Whether a block is the header of a member: its sum is right."""
    if len(block) != BLOCK or not _OCTAL.fullmatch(field := block[_CHECKSUM].strip(b" \0")) or not field:
        return False
    total = sum(block) - sum(block[_CHECKSUM]) + 8 * 32
    signed = total - 256 * sum(1 for byte in block if byte > 127)  # some summed signed bytes
    return int(field, 8) in (total, signed)


def with_size(member: LayerMember, size: int) -> bytes:
    """The blocks before a member whose data have another size now; nothing else of them differs."""
    blocks = member.blocks
    position = 0
    out: list[bytes] = []
    while position < len(blocks):
        header = blocks[position : position + BLOCK]
        kind = header[156:157]
        position += BLOCK
        if kind not in (_PAX, GLOBAL, _LONG_NAME, _LONG_LINK):
            out.append(_sized(header, size))
            break
        length = _number(header[_SIZE], "")
        data = blocks[position : position + length]
        position += length + -length % BLOCK
        if kind == _PAX:
            data = _with_size_record(data, size)
            header = _sized(header, len(data))
        out += (header, data, bytes(-len(data) % BLOCK))
    return b"".join(out)


def header_of(member: LayerMember) -> tuple[bytes, dict[bytes, bytes]]:
    """The block that describes a member, and the extended records before it."""
    records: dict[bytes, bytes] = {}
    position = 0
    while (header := member.blocks[position : position + BLOCK])[156:157] in (_PAX, GLOBAL, _LONG_NAME, _LONG_LINK):
        length = _number(header[_SIZE], "")
        position += BLOCK
        if header[156:157] == _PAX:
            records.update(_records(member.blocks[position : position + length], ""))
        position += length + -length % BLOCK
    return header, records


def new_member(like: LayerMember, name: bytes, size: int, *, folder: bool = False) -> bytes:
    """The header of a new file, or folder, with the owner, time and (for files) mode of another file."""
    header, records = header_of(like)
    kept = {key: value for key, value in records.items() if key in _OF_OWNER}
    if len(name) > 100:
        kept[b"path"] = name
    mode, kind = (b"0000755\0", b"5") if folder else (header[100:108], b"0")
    plain = name[:100].ljust(100, b"\0") + mode + header[108:156] + kind + bytes(100) + header[257:345] + bytes(167)
    out = [_sized(plain, size)]
    if kept:
        data = b"".join(_record(key, value) for key, value in kept.items())
        first = b"PaxHeaders/new".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"00000000000\0" * 2
        first += b" " * 8 + _PAX + bytes(100) + b"ustar\x0000" + bytes(247)
        out = [_sized(first, len(data)), data, bytes(-len(data) % BLOCK), *out]
    return b"".join(out)


def _sized(header: bytes, size: int) -> bytes:
    if header[124] & 0x80 or size >= _EIGHT_GIB:
        field = b"\x80" + size.to_bytes(11, "big")
    else:
        field = b"%011o" % size + header[135:136]  # what ended the field still does
    header = header[:124] + field + header[136:]
    total = sum(header) - sum(header[_CHECKSUM]) + 8 * 32
    return header[:148] + b"%06o\0 " % total + header[156:]


def _with_size_record(data: bytes, size: int) -> bytes:
    out = []
    for key, value in _pairs(data, ""):
        out.append(_record(key, b"%d" % size if key == b"size" else value))
    return b"".join(out)


def _record(key: bytes, value: bytes) -> bytes:
    """A PAX record, whose length counts its own digits."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def _records(data: bytes, where: str) -> dict[bytes, bytes]:
    return dict(_pairs(data, where))


def _pairs(data: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(data):
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record[:-1].partition(b"=")
        if not length or not key or not equals or record[-1:] != b"\n" or position + length > len(data):
            if not data[position:].strip(b"\0"):  # some pad it with zeros
                return
            raise BadInputError(f"{where} has an extended header that is none.", _AGAIN)
        yield key, value
        position += length


def _number(field: bytes, where: str) -> int:
    """A number of a header: octal digits, or binary where those would not do."""
    if field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or number >= 1 << 60:
            raise BadInputError(f"{where} has a file of an impossible size.", _AGAIN)
        return number
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not _OCTAL.fullmatch(digits):  # int() would take a sign, and underscores
        raise BadInputError(f"{where} is not a tar archive, or is damaged.", _AGAIN)
    return int(digits, 8) if digits else 0
