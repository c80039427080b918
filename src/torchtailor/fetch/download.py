"""Downloads: several in parallel, resumed where they stopped, checked by hash, and only then put into the cache."""

from __future__ import annotations

import logging
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import urllib3

from torchtailor.core.disk import CACHE_VARIABLE, hash_file, hash_intact, locked, write_atomically
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError
from torchtailor.core.progress import Progress
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, is_sha256, read_limited
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import (
    Client,
    ContentRange,
    UnreachableError,
    is_slow,
    read_pieces,
    wait_before,
    worker_threads,
    worth_retrying,
)
from torchtailor.fetch.metadata import check_metadata
from torchtailor.fetch.pages import WheelAddress

_log = logging.getLogger(__name__)
PARALLEL = 6
_FRUITFUL = 1 << 20  # bytes that a slow attempt must bring for others to follow without an end


@dataclass(frozen=True, slots=True)
class Fetched:
    """A wheel on disk, whole."""

    file: WheelAddress
    path: Path
    sha256: str
    downloaded: int  # bytes downloaded in this run


class WrongBytesError(NetworkError):
    """A server sent other bytes than its index lists."""


class _Stopped(Exception):  # noqa: N818
    """Another download failed or the user pressed Ctrl-C; partial downloads stay for the next run."""


class _State(msgspec.Struct):
    """What is kept beside a partial download."""

    etag: str = ""


class Downloader:
    """Fetches wheels into the cache."""

    def __init__(self, client: Client, cache: Cache, *, parallel: int = PARALLEL) -> None:
        self._client, self._cache, self._parallel = client, cache, parallel
        self._stop = threading.Event()

    def fetch(self, files: Sequence[WheelAddress], progress: Progress | None = None) -> dict[str, Fetched]:
        """All files, largest first, by URL; stops all at the first failure or at Ctrl-C."""
        progress = progress or Progress()
        progress.expected(sum((file.size or 0) - self.resumable(file) for file in self.missing(files)))
        ordered = sorted(files, key=lambda file: -(file.size or 0))
        with worker_threads(self._parallel) as pool:
            futures = {pool.submit(self._one, file, progress): file for file in ordered}
            try:
                if wait(futures, return_when=FIRST_EXCEPTION).not_done:
                    self._stop.set()
            except BaseException:
                self._stop.set()
                self._client.abort()
                raise
        return {futures[future].url: future.result() for future in _failures_first(futures)}

    def missing(self, files: Sequence[WheelAddress]) -> tuple[WheelAddress, ...]:
        """The files that would have to be downloaded."""
        return tuple(file for file in files if file.local_path is None and self._cached(file) is None)

    def resumable(self, file: WheelAddress) -> int:
        """Bytes of a file that an earlier run has downloaded."""
        part = self._cache.partial(file.key)
        return part.stat().st_size if part.exists() else 0

    def _one(self, file: WheelAddress, progress: Progress) -> Fetched:
        if self._stop.is_set():
            raise _Stopped
        if (path := file.local_path) is not None:
            return self._local(file, path)
        if (path := self._cached(file)) is not None:
            _log.info("%s is in the cache: %s", file.filename, path)
            return Fetched(file, path, path.parent.name, 0)
        if self._client.settings.offline:
            raise NetworkError(
                f"{file.filename} is not in the cache, and --offline does not allow a download.",
                "Run the same command once without --offline.",
            )
        with _locked(self._cache.partial(file.key)) as part:
            if (path := self._cached(file)) is not None:  # another process was faster
                return Fetched(file, path, path.parent.name, 0)
            return self._download(file, part, progress)

    def _local(self, file: WheelAddress, path: Path) -> Fetched:
        digest = self._local_hash(path)
        if (expected := file.best_hash) is not None:
            actual = digest if expected[0] == "sha256" else hash_file(path, expected[0])
            if actual != expected[1]:
                raise BadInputError(
                    f"{path} is not the file that its index page lists: its {expected[0]} differs.", "Copy it again."
                )
        return Fetched(file, path, digest, 0)

    def _local_hash(self, path: Path) -> str:
        """The hash of a local file, cached for as long as its size, time and inode stay the same."""
        status = path.stat()
        key = f"{path}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}"
        if known := self._hash_note(key):
            return known
        digest = hash_file(path)
        self._cache.write_note("facts", key, digest.encode("ascii"))
        return digest

    def _hash_note(self, key: str) -> str | None:
        """A hash that was kept; what is none was damaged."""
        known = (self._cache.read_note("facts", key) or b"").decode("ascii", "replace")
        return known if is_sha256(known) else None

    def _cached(self, file: WheelAddress) -> Path | None:
        sha256 = file.sha256 or self._hash_note(f"sha256 of {file.key}")
        return self._cache.locate(sha256, file.filename) if sha256 else None

    def _download(self, file: WheelAddress, part: Path, progress: Progress) -> Fetched:
        """Retry until the file is whole; attempts that bring no bytes are counted, and slow ones with few."""
        _log.info("downloading %s, %s of %s bytes are here", file.shown, part.stat().st_size, file.size or "?")
        progress.started(file.filename, file.size, part.stat().st_size)
        received = fruitless = 0
        wrong = False
        while True:
            before = part.stat().st_size
            try:
                received += self._receive(file, part, progress)
                digest = _check(file, part)
                break
            except WrongBytesError:
                # Perhaps the rest was appended to a part of an older file. Once more, from the start.
                _discard(part)
                progress.restarted(file.filename)
                if wrong:
                    raise
                wrong = True
            except NetworkError as error:
                if self._stop.is_set():
                    raise _Stopped from error
                enough = _FRUITFUL if is_slow(error) else 1
                fruitless = 0 if part.stat().st_size - before >= enough else fruitless + 1
                if not worth_retrying(error) or fruitless > self._client.settings.retries:
                    raise
                self._pause(wait_before(fruitless, error))
        check_metadata(self._cache, file, part)
        part.with_suffix(".json").unlink(missing_ok=True)
        path = self._cache.adopt(part, digest, file.filename)
        if file.sha256 is None:
            self._cache.write_note("facts", f"sha256 of {file.key}", digest.encode("ascii"))
        progress.finished(file.filename)
        return Fetched(file, path, digest, received)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def _receive(self, file: WheelAddress, part: Path, progress: Progress) -> int:
        """One request for the missing bytes; returns how many came."""
        have = part.stat().st_size
        state = _read_state(part)
        headers = {}
        if have:
            headers["Range"] = f"bytes={have}-"
            if state.etag:
                headers["If-Range"] = state.etag
        with self._client.open(file.url, headers, accept=(200, 206, 416)) as response, part.open("r+b") as out:
            if response.status == 416:
                if have and ContentRange.of(response.headers).size == have:
                    return 0  # the part is whole already
                _restart(out, part, file, progress)
                raise UnreachableError(f"{file.shown} refused the range that was requested.")
            start = have if response.status == 206 else 0
            if response.status == 206 and ContentRange.of(response.headers).first != have:
                _restart(out, part, file, progress)
                raise UnreachableError(f"{file.shown} sent another range than was requested.")
            if start != have:
                progress.restarted(file.filename)
            out.truncate(start)
            out.seek(start)
            _keep_state(part, response)
            return self._copy(file, response, out, progress)

    def _copy(self, file: WheelAddress, response: urllib3.BaseHTTPResponse, out: IO[bytes], progress: Progress) -> int:
        received = 0
        try:
            for chunk in read_pieces(response, file.shown):
                if self._stop.is_set():
                    raise _Stopped
                out.write(chunk)
                received += len(chunk)
                progress.advanced(file.filename, len(chunk))
                if file.size is not None and out.tell() > file.size:
                    raise WrongBytesError(
                        f"{file.shown} sends more than the {file.size} bytes that its index lists.", _AGAIN
                    )
        except OSError as error:
            raise EnvironmentProblem(
                f"{file.filename} cannot be written to the cache: {error.strerror}.",
                f"Free some space, or set {CACHE_VARIABLE} to a folder on another disk.",
            ) from error
        return received


_AGAIN = "Try again later, or use another index; the wrong bytes were discarded."


def _check(file: WheelAddress, part: Path) -> str:
    """The sha256 of a whole download, after comparing size and hash with those of the index."""
    size = part.stat().st_size
    if file.size is not None and size < file.size:
        raise UnreachableError(f"{file.shown} ended after {size} of {file.size} bytes.", _AGAIN)
    digest = hash_intact(part)
    expected = file.best_hash
    if expected is not None:
        actual = digest if expected[0] == "sha256" else hash_file(part, expected[0])
        if actual != expected[1]:
            raise WrongBytesError(
                f"{file.shown} is not the file that its index lists: its {expected[0]} differs.", _AGAIN
            )
    elif not zipfile.is_zipfile(part):
        raise WrongBytesError(f"{file.shown} is not a wheel.", _AGAIN)
    with part.open("rb+") as handle:
        os.fsync(handle.fileno())
    return digest


@contextmanager
def _locked(part: Path) -> Iterator[Path]:
    """Lock one download: a second process waits until the first has finished."""
    with locked(part.with_suffix(".lock"), f"The download {part.name}"):
        try:
            part.touch()
            yield part
        finally:
            with suppress(OSError):
                if part.exists() and part.stat().st_size == 0:
                    part.unlink()


def _restart(out: IO[bytes], part: Path, file: WheelAddress, progress: Progress) -> None:
    out.truncate(0)
    part.with_suffix(".json").unlink(missing_ok=True)
    progress.restarted(file.filename)


def _discard(part: Path) -> None:
    part.write_bytes(b"")
    part.with_suffix(".json").unlink(missing_ok=True)


def _keep_state(part: Path, response: urllib3.BaseHTTPResponse) -> None:
    etag = response.headers.get("etag", "")
    strong = etag if etag and not etag.startswith("W/") else ""
    write_atomically(part.with_suffix(".json"), msgspec.json.encode(_State(strong)))


def _read_state(part: Path) -> _State:
    try:
        return msgspec.json.decode(read_limited(part.with_suffix(".json"), Limit.STATE), type=shaped(_State))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, BadInputError):
        return _State()


def _failures_first(futures: Mapping[Future[Fetched], WheelAddress]) -> list[Future[Fetched]]:
    """Real failures before downloads that were only stopped by them."""

    def order(future: Future[Fetched]) -> int:
        error = future.exception() if not future.cancelled() else _Stopped()
        return 0 if error and not isinstance(error, _Stopped) else 1

    return sorted(futures, key=order)
