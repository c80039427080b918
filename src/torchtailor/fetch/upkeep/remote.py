"""A listed wheel of which only the parts that are read are fetched: small members, or large ones as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import urllib3

from torchtailor.code.binary.inflate import ReadAt
from torchtailor.code.binary.source import blamed_on
from torchtailor.core.errors import BadInputError, NetworkError
from torchtailor.core.trust import Limit
from torchtailor.core.urls import redact
from torchtailor.fetch.client import Client, ContentRange, UnreachableError
from torchtailor.fetch.metadata import RangeFile
from torchtailor.fetch.pages import WheelFile
from torchtailor.trees.wheels.archive import Member, locate, member_source, read_table

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
        if self.members[name].size > Limit.METADATA:
            raise BadInputError(f"{self.name}: {name} is larger than {Limit.METADATA >> 20} MB.", "Fetch it again.")
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
    """Reads a remote file forward up to an offset: one request, and another where it breaks off."""

    def __init__(self, client: Client, url: str, end: int) -> None:
        self._client, self._url, self._end = client, url, end
        self._at = -1
        self._opened = ExitStack()
        self._response: urllib3.BaseHTTPResponse | None = None

    def read_at(self, offset: int, size: int) -> bytes:
        """At least one of these bytes, unless they are behind the end."""
        size = min(size, self._end - offset)
        if size <= 0:
            return b""
        data: bytes = self._client.retrying(lambda: self._read(offset, size))
        self._at = offset + len(data)
        if self._at == self._end:
            self._opened.close()
        return self._client.counted(data)

    def _read(self, offset: int, size: int) -> bytes:
        if self._response is None or self._at != offset:
            self._open(offset)
        assert self._response is not None
        try:
            data = self._response.read(size)
        except urllib3.exceptions.HTTPError as error:
            self._at = -1
            raise UnreachableError(f"{redact(self._url)} broke off.", "Try again.") from error
        if not data:
            self._at = -1
            raise UnreachableError(f"{redact(self._url)} broke off.", "Try again.")
        return data

    def _open(self, offset: int) -> None:
        self._opened.close()
        wanted = f"bytes={offset}-{self._end - 1}"
        self._response = self._opened.enter_context(self._client.open(self._url, {"Range": wanted}, accept=(206,)))
        self._at = offset
        sent = ContentRange.of(self._response.headers)
        if (sent.first, sent.last) != (offset, self._end - 1):
            raise NetworkError(
                f"The server of {redact(self._url)} sent another range than was requested.", "Try again."
            )
