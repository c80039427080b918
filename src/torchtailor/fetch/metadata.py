"""The metadata of a wheel without a download: its metadata file, or a few kilobytes of the zip by range requests."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchtailor.code.binary.source import blamed_on
from torchtailor.core.errors import BadInputError, NetworkError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit
from torchtailor.core.urls import redact
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client, ContentRange, StatusError, UnreachableError
from torchtailor.fetch.pages import WheelAddress, WheelFile
from torchtailor.trees.wheels.archive import Member, WheelArchive, locate, member_source, read_table

_TAIL = 64 << 10
_BLOCK = 32 << 10
_TABLE_LIMIT = 256 << 20  # of the tables of a zip: 2 MB in torch


@dataclass(frozen=True)
class Facts:
    """What is known about a wheel before its download: its METADATA text and its size."""

    text: bytes
    size: int

    @cached_property
    def requires(self) -> tuple[Requirement, ...]:
        raw, _ = parse_email(self.text)
        requirements = []
        for line in raw.get("requires_dist", []):
            try:
                requirements.append(Requirement(line))
            except (ValueError, RecursionError) as error:  # InvalidRequirement, or a version of thousands of digits
                raise BadInputError(
                    f"The metadata of {raw.get('name', 'a wheel')[:100]} has an invalid requirement: {line[:200]!r}."
                ) from error
        return tuple(requirements)

    @cached_property
    def requires_python(self) -> str:
        return parse_email(self.text)[0].get("requires_python", "")


class _Stored(msgspec.Struct):
    text: bytes
    size: int


class FactsReader:
    """Reads the facts about wheels, and caches them."""

    def __init__(self, client: Client, cache: Cache, *, offline: bool = False) -> None:
        self._client, self._cache, self._offline = client, cache, offline

    def read(self, file: WheelFile) -> Facts:
        if (path := file.local_path) is not None:
            return Facts(read_local(path), path.stat().st_size)
        if stored := self._cache.read_note("facts", file.key):
            try:
                kept = msgspec.msgpack.decode(stored, type=shaped(_Stored))
                return Facts(kept.text, kept.size)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                pass  # a damaged cache entry is replaced
        if (path := self._blob(file)) is not None:
            return Facts(read_local(path), path.stat().st_size)
        if self._offline:
            raise NetworkError(
                f"{file.filename} is not in the cache, and --offline does not allow a request.",
                "Run the same command once without --offline.",
            )
        facts = self._ask(file)
        self._cache.write_note("facts", file.key, msgspec.msgpack.encode(_Stored(facts.text, facts.size)))
        return facts

    def _blob(self, file: WheelFile) -> Path | None:
        return self._cache.locate(file.sha256, file.filename) if file.sha256 else None

    def _ask(self, file: WheelFile) -> Facts:
        if file.metadata is not None:
            answer = self._client.get(file.url + ".metadata")
            if answer.status == 200 and len(answer.body) <= Limit.METADATA and _is(answer.body, file):
                return Facts(answer.body, file.size or self._size(file))
        remote = RangeFile(self._client, file.url)
        return Facts(_from_remote(remote, file.filename), remote.size)

    def _size(self, file: WheelFile) -> int:
        size = self._client.size(file.url)
        if size is None:
            raise NetworkError(f"The server does not report the size of {file.filename}.")
        return size


def _is(text: bytes, file: WheelFile) -> bool:
    """Whether a metadata file has the hash that the index lists; without one it is accepted."""
    for name, expected in (file.metadata or {}).items():
        if name in hashlib.algorithms_available and hashlib.new(name, text).hexdigest() != expected:
            return False
    return True


def read_local(path: Path, filename: str = "") -> bytes:
    """The METADATA of a wheel on disk; `filename` is its own name where it lies under another."""
    try:
        with WheelArchive(path) as archive:
            return archive.read(_metadata(archive.members.values(), filename or path.name).name)
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}.") from error


def _from_remote(remote: RangeFile, filename: str) -> bytes:
    """The METADATA of a wheel elsewhere: its whole table is checked as that of a wheel on disk, and this one member."""
    member = _metadata(read_table(remote, filename, remote.size), filename)
    placed = locate(remote.read_at, filename, remote.size, member)
    with blamed_on(f"{filename}: {member.name}"):
        return b"".join(member_source(remote.read_at, placed).chunks())


def _metadata(members: Iterable[Member], filename: str) -> Member:
    name = canonicalize_name(filename.split("-", maxsplit=1)[0])
    for member in members:
        folder, _, rest = member.name.partition("/")
        match = re.fullmatch(r"(.+)-[^-]+\.dist-info", folder)
        if rest == "METADATA" and match and canonicalize_name(match[1]) == name and member.size <= Limit.METADATA:
            return member
    raise BadInputError(f"{filename} has no readable METADATA.", "It is not a wheel of that name.")


def check_metadata(cache: Cache, file: WheelAddress, path: Path) -> None:
    """Refuse a wheel that needs something else than was said before it was fetched, and what was resolved by."""
    stored = cache.read_note("facts", file.key)
    try:
        said = Facts(msgspec.msgpack.decode(stored, type=shaped(_Stored)).text, 0) if stored else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = None
    if said is None:
        return
    own = Facts(read_local(path, file.filename), 0)
    for what, before, now in (
        ("dependencies", set(map(str, said.requires)), set(map(str, own.requires))),
        ("Requires-Python", said.requires_python, own.requires_python),
    ):
        if before != now:
            cache.drop_note("facts", file.key)
            raise NetworkError(
                f"{file.filename} has other {what} than the metadata that its index serves beside it.",
                "Report it to whoever runs the index, and use another one.",
            )


class RangeFile(io.RawIOBase):
    """A remote file that downloads only what is read: a zip's directory and one small member."""

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url = client, url
        self._position = self._fetched = 0
        self._blocks: list[tuple[int, bytes]] = []
        try:
            answer = client.get_range(url, f"bytes=-{_TAIL}", _TAIL)
        except StatusError:
            raise
        except NetworkError as error:
            if isinstance(error, UnreachableError):
                raise
            raise _no_ranges(url) from error
        sent = ContentRange.of(answer.headers)
        if sent.size is None or sent != ContentRange.part(sent.size - len(answer.body), sent.size, sent.size):
            raise _no_ranges(url)
        self.size = sent.size
        self._blocks.append((sent.size - len(answer.body), answer.body))

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("seek before the start of the file")
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size is None or size < 0 else min(self._position + size, self.size)
        data = self.read_at(self._position, end - self._position)
        self._position += len(data)
        return data

    def read_at(self, start: int, size: int) -> bytes:
        end = min(start + size, self.size)
        if start >= end:
            return b""
        for at, data in self._blocks:
            if at <= start and end <= at + len(data):
                return data[start - at : end - at]
        last = min(max(end, start + _BLOCK), self.size)
        self._fetched += last - start
        if self._fetched > _TABLE_LIMIT:
            raise NetworkError(f"The table of {redact(self._url)} is larger than any real wheel's.", "Do not use it.")
        answer = self._client.get_range(self._url, f"bytes={start}-{last - 1}", last - start)
        sent = ContentRange.of(answer.headers)
        if len(answer.body) != last - start or sent != ContentRange.part(start, last, self.size):
            raise NetworkError(f"The server of {redact(self._url)} sent another range than was requested.")
        self._blocks.append((start, answer.body))
        return answer.body[: end - start]


def _no_ranges(url: str) -> NetworkError:
    return NetworkError(
        f"The server of {redact(url)} has no metadata file and does not support range requests.",
        "Download the wheel yourself and give its folder with --find-links.",
    )
