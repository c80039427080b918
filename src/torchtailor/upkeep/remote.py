"""A listed wheel of which only the parts that are read are fetched: small members, or large ones as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchtailor.binary.inflate import ReadAt
from torchtailor.binary.source import blamed_on
from torchtailor.errors import BadInputError, NetworkError
from torchtailor.fetch.client import Client
from torchtailor.fetch.metadata import RangeFile
from torchtailor.fetch.pages import WheelFile
from torchtailor.wheels.archive import Member, locate, member_source, read_table

_PIECE = 8 << 20

Streams = Callable[[int], ReadAt]  # reads forward up to an offset


class ListedWheel:
    """The members of a wheel on an index or in a folder."""

    def __init__(self, name: str, size: int, members: tuple[Member, ...], read: ReadAt, stream: Streams) -> None:
        self.name, self.size = name, size
        self.members = {member.name: member for member in members}
        self._read, self._stream = read, stream

    def text(self, name: str) -> str:
        """A small member."""
        if name not in self.members:
            raise BadInputError(f"{self.name} has no {name}.", "It is not an official wheel of PyTorch.")
        placed = self._place(self.members[name])
        with blamed_on(f"{self.name}: {name}"):
            return b"".join(member_source(self._read, placed).chunks()).decode("utf-8", "replace")

    def chunks(self, member: Member) -> Iterator[bytes]:
        """The unpacked bytes of a large member; nothing of it is kept."""
        placed = self._place(member)
        with blamed_on(f"{self.name}: {member.name}"):
            yield from member_source(self._stream(placed.data_offset + placed.packed_size), placed).chunks()

    def _place(self, member: Member) -> Member:
        return locate(self._read, self.name, self.size, member)


@contextmanager
def open_listed(file: WheelFile, client: Client) -> Iterator[ListedWheel]:
    """Open a wheel where it is listed."""
    path = file.local_path
    if path is None:
        remote = RangeFile(client, file.url)
        members = read_table(remote, file.filename, remote.size)

        def streams(end: int) -> ReadAt:
            return _Stream(client, file.url, end).read_at

        yield ListedWheel(file.filename, remote.size, members, remote.read_at, streams)
        return
    with path.open("rb") as local:
        size = os.fstat(local.fileno()).st_size

        def read(offset: int, wanted: int) -> bytes:
            return os.pread(local.fileno(), wanted, offset)

        yield ListedWheel(file.filename, size, read_table(local, str(path), size), read, lambda _: read)


class _Stream:
    """Reads a remote file forward up to an offset in large pieces, of which it holds one."""

    def __init__(self, client: Client, url: str, end: int) -> None:
        self._client, self._url, self._end = client, url, end
        self._start, self._piece = 0, b""

    def read_at(self, offset: int, size: int) -> bytes:
        """At least one of these bytes, unless they are behind the end."""
        if not self._start <= offset < self._start + len(self._piece):
            if offset >= self._end or size <= 0:
                return b""
            end = min(offset + _PIECE, self._end)
            answer = self._client.get_range(self._url, f"bytes={offset}-{end - 1}", end - offset)
            if len(answer.body) != end - offset:
                raise NetworkError("The server sent another range than was requested.", "Try again.")
            self._start, self._piece = offset, answer.body
        at = offset - self._start
        return self._piece[at : at + size]
