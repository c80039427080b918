"""Writes a wheel's zip: the same input gives the same bytes, and the file appears whole or not at all."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from torchtailor.core.disk import new_file
from torchtailor.trees.wheels.archive import Member, WheelArchive
from torchtailor.trees.wheels.deflate import Effort, deflate_bytes, deflate_file
from torchtailor.trees.wheels.record import FileHash, Record, RecordRow

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s4B4H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")

_MAX16 = 0xFFFF
_MAX32 = 0xFFFFFFFF
_UTF8 = 0x800
_UNIX = 3
_DATE_1980 = (1 << 5) | 1  # 1 January 1980, the earliest a zip can say
_COPY_STEP = 64 << 20
DEFAULT_MODE = stat.S_IFREG | 0o644


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int
    wide: bool  # sizes of 64 bits

    @property
    def flags(self) -> int:
        return 0 if self.name.isascii() else _UTF8

    def local(self) -> bytes:
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.packed_size) if self.wide else b""
        sizes = (_MAX32, _MAX32) if extra else (self.packed_size, self.size)
        version = 45 if extra else 20
        head = _LOCAL.pack(
            b"PK\x03\x04", version, self.flags, self.method, 0, _DATE_1980, self.crc, *sizes, len(self.name), len(extra)
        )
        return head + self.name + extra

    def central(self) -> bytes:
        wide = [self.size, self.packed_size] if self.wide else []
        far = self.offset >= _MAX32
        values = [*wide, *([self.offset] if far else [])]
        extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        sizes = (_MAX32, _MAX32) if wide else (self.packed_size, self.size)
        version = 45 if values else 20
        attributes = self.mode << 16 | (0x10 if stat.S_ISDIR(self.mode) else 0)
        head = _CENTRAL.pack(
            b"PK\x01\x02", version, _UNIX, version, 0, self.flags, self.method, 0, _DATE_1980, self.crc, *sizes,
            len(self.name), len(extra), 0, 0, 0, attributes, _MAX32 if far else self.offset,
        )  # fmt: skip
        return head + self.name + extra


class WheelWriter:
    """Adds members in the order they shall have, and notes what RECORD says of them; made by `new_wheel`."""

    def __init__(self, file: BinaryIO, effort: Effort, threads: int) -> None:
        self._file = file
        self._effort = effort
        self._threads = threads
        self._entries: list[_Entry] = []
        self._rows: list[RecordRow] = []

    def add_bytes(self, name: str, data: bytes, mode: int = DEFAULT_MODE) -> None:
        """A small file; stored where packing does not help."""
        from isal import isal_zlib

        packed = deflate_bytes(data, self._effort)
        method = 8 if len(packed) < len(data) else 0
        body = packed if method else data
        self._begin(name, method, isal_zlib.crc32(data), len(body), len(data), mode)
        self._file.write(body)
        self._rows.append(RecordRow(name, FileHash.of(data), len(data)))

    def add_record(self, name: str) -> None:
        """RECORD, which lists all that was added before, and itself."""
        self.add_bytes(name, Record([*self._rows, RecordRow(name)]).encode())

    def add_file(self, name: str, source: Path, mode: int = DEFAULT_MODE, *, sha256: FileHash | None = None) -> None:
        """A large file, deflated straight into the wheel; its header is filled in afterwards."""
        size = source.stat().st_size
        bound = size + size // 1000 + 1024  # deflate never grows by as much
        draft = self._begin(name, 8, 0, bound, size, mode)
        packed = deflate_file(source, self._file, self._effort, self._threads)
        end = self._file.tell()
        self._entries[-1] = replace(draft, crc=packed.crc, packed_size=packed.packed_size, size=packed.size)
        self._file.seek(draft.offset)
        self._file.write(self._entries[-1].local())
        self._file.seek(end)
        self._rows.append(RecordRow(name, sha256, size))

    def copy(self, archive: WheelArchive, member: Member, name: str, sha256: FileHash | None = None) -> None:
        """A member of another wheel, its packed bytes copied unchanged."""
        method = 8 if member.deflated else 0
        mode = member.mode or (stat.S_IFDIR | 0o755 if member.is_dir else DEFAULT_MODE)
        self._begin(name, method, member.crc, member.packed_size, member.size, mode)
        self._file.flush()
        _copy_range(archive.fileno, self._file.fileno(), member.data_offset, member.packed_size)
        self._file.seek(0, os.SEEK_END)
        if not member.is_dir:
            self._rows.append(RecordRow(name, sha256, member.size))

    def finish(self) -> None:
        """The table at the end, with its wide form where counts or offsets need it."""
        start = self._file.tell()
        for entry in self._entries:
            self._file.write(entry.central())
        end = self._file.tell()
        count, size = len(self._entries), end - start
        if count >= _MAX16 or start >= _MAX32 or size >= _MAX32:
            self._file.write(_END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start))
            self._file.write(_LOCATOR64.pack(b"PK\x06\x07", 0, end, 1))
        count16 = min(count, _MAX16)
        self._file.write(_END.pack(b"PK\x05\x06", 0, 0, count16, count16, min(size, _MAX32), min(start, _MAX32), 0))

    def _begin(self, name: str, method: int, crc: int, packed_size: int, size: int, mode: int) -> _Entry:
        wide = max(packed_size, size) >= _MAX32
        entry = _Entry(name.encode(), method, crc, packed_size, size, mode, self._file.tell(), wide)
        self._entries.append(entry)
        self._file.write(entry.local())
        return entry


@contextmanager
def new_wheel(path: Path, *, effort: Effort = Effort.FAST, threads: int = 2) -> Iterator[WheelWriter]:
    """Write a wheel beside its place; it is flushed to disk and moved there when the block ends well."""
    with new_file(path, durable=True) as file:
        writer = WheelWriter(file, effort, threads)
        yield writer
        writer.finish()


def _copy_range(source: int, target: int, offset: int, size: int) -> None:
    """Bytes from file to file inside the kernel (shared, not copied, where the file system can)."""
    while size:
        try:
            done = os.copy_file_range(source, target, min(size, _COPY_STEP), offset)
        except OSError:
            done = os.sendfile(target, source, offset, min(size, _COPY_STEP))
        if not done:
            raise OSError(f"the file ends {size} bytes too early")
        offset += done
        size -= done
