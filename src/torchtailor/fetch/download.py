"""Downloads: several at once, resumed where they stopped, checked by hash, and only then in the cache."""

from __future__ import annotations

import os
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec
import urllib3

from torchtailor.disk import CACHE_VARIABLE, hash_file, locked, write_atomically
from torchtailor.errors import BadInputError, EnvironmentProblem, NetworkError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client, UnreachableError, wait_before, worth_retrying
from torchtailor.fetch.pages import WheelFile

_CHUNK = 1 << 20
PARALLEL = 6


class DownloadProgress(Protocol):
    """Is told how a download goes on; called from several threads."""

    def started(self, filename: str, size: int | None, already: int) -> None: ...

    def advanced(self, filename: str, size: int) -> None: ...

    def restarted(self, filename: str) -> None: ...

    def finished(self, filename: str) -> None: ...


class NoDownloadProgress:
    """Progress of downloads that nobody watches."""

    def started(self, filename: str, size: int | None, already: int) -> None: ...

    def advanced(self, filename: str, size: int) -> None: ...

    def restarted(self, filename: str) -> None: ...

    def finished(self, filename: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A wheel that is here, whole."""

    file: WheelFile
    path: Path
    sha256: str
    downloaded: int  # bytes that came over the network in this run


class WrongBytesError(NetworkError):
    """A server sent something else than its index names."""


class _Stopped(Exception):  # noqa: N818
    """Another download failed or the user pressed Ctrl-C; what is here stays for the next run."""


class _State(msgspec.Struct):
    """What is kept beside a half-finished download."""

    etag: str = ""


class Downloader:
    """Fetches wheels into the cache."""

    def __init__(self, client: Client, cache: Cache, *, parallel: int = PARALLEL) -> None:
        self._client, self._cache, self._parallel = client, cache, parallel
        self._stop = threading.Event()

    def fetch(self, files: Sequence[WheelFile], progress: DownloadProgress | None = None) -> dict[str, Fetched]:
        """All files, largest first, by address; stops all at the first failure or at Ctrl-C."""
        progress = progress or NoDownloadProgress()
        ordered = sorted(files, key=lambda file: -(file.size or 0))
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="fetch") as pool:
            futures = {pool.submit(self._one, file, progress): file for file in ordered}
            try:
                if wait(futures, return_when=FIRST_EXCEPTION).not_done:
                    self._stop.set()
            except BaseException:
                self._stop.set()
                for future in futures:
                    future.cancel()
                raise
        return {futures[future].url: future.result() for future in _failures_first(futures)}

    def missing(self, files: Sequence[WheelFile]) -> tuple[WheelFile, ...]:
        """The files that would have to come over the network."""
        return tuple(file for file in files if file.local_path is None and self._cached(file) is None)

    def resumable(self, file: WheelFile) -> int:
        """Bytes of a file that an earlier run has left."""
        part = self._cache.partial(file.key)
        return part.stat().st_size if part.exists() else 0

    def _one(self, file: WheelFile, progress: DownloadProgress) -> Fetched:
        if self._stop.is_set():
            raise _Stopped
        if (path := file.local_path) is not None:
            return self._local(file, path)
        if (path := self._cached(file)) is not None:
            return Fetched(file, path, path.parent.name, 0)
        if self._client.settings.offline:
            raise NetworkError(
                f"{file.filename} is not in the cache, and --offline forbids to fetch it.",
                "Run the same command once without --offline.",
            )
        with _alone(self._cache.partial(file.key)) as part:
            if (path := self._cached(file)) is not None:  # another process was quicker
                return Fetched(file, path, path.parent.name, 0)
            return self._download(file, part, progress)

    def _local(self, file: WheelFile, path: Path) -> Fetched:
        digest = self._local_hash(path)
        if (expected := file.best_hash) is not None:
            actual = digest if expected[0] == "sha256" else hash_file(path, expected[0])
            if actual != expected[1]:
                raise BadInputError(
                    f"{path} is not the file that its index page names: its {expected[0]} differs.", "Copy it again."
                )
        return Fetched(file, path, digest, 0)

    def _local_hash(self, path: Path) -> str:
        """The hash of a local file, remembered for as long as the file looks the same."""
        status = path.stat()
        key = f"{path}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}"
        if (known := self._cache.read_note("facts", key)) is not None:
            return known.decode("ascii")
        digest = hash_file(path)
        self._cache.write_note("facts", key, digest.encode("ascii"))
        return digest

    def _cached(self, file: WheelFile) -> Path | None:
        sha256 = file.sha256
        if sha256 is None and (known := self._cache.read_note("facts", f"sha256 of {file.key}")) is not None:
            sha256 = known.decode("ascii")
        return self._cache.find(sha256, file.filename) if sha256 else None

    def _download(self, file: WheelFile, part: Path, progress: DownloadProgress) -> Fetched:
        """Go on until the file is whole; tries that bring nothing are counted, progress resets the count."""
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
                # Wrong bytes: perhaps of an older file that the rest was joined to. Once more, from the start.
                _discard(part)
                progress.restarted(file.filename)
                if wrong:
                    raise
                wrong = True
            except NetworkError as error:
                fruitless = 0 if part.stat().st_size > before else fruitless + 1
                if not worth_retrying(error) or fruitless > self._client.settings.retries:
                    raise
                self._pause(wait_before(fruitless, error))
        part.with_suffix(".json").unlink(missing_ok=True)
        path = self._cache.adopt(part, digest, file.filename)
        if file.sha256 is None:
            self._cache.write_note("facts", f"sha256 of {file.key}", digest.encode("ascii"))
        progress.finished(file.filename)
        return Fetched(file, path, digest, received)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def _receive(self, file: WheelFile, part: Path, progress: DownloadProgress) -> int:
        """One request for what is missing; returns the bytes it brought."""
        have = part.stat().st_size
        state = _read_state(part)
        headers = {}
        if have:
            headers["Range"] = f"bytes={have}-"
            if state.etag:
                headers["If-Range"] = state.etag
        with self._client.open(file.url, headers, accept=(200, 206, 416)) as response, part.open("r+b") as out:
            if response.status == 416:
                if have and _total(response) == have:
                    return 0  # it was whole already
                _restart(out, part, file, progress)
                raise UnreachableError(f"{file.shown} has no such range.")
            start = have if response.status == 206 else 0
            if response.status == 206 and not _starts_at(response, have):
                _restart(out, part, file, progress)
                raise UnreachableError(f"{file.shown} answered another range than was asked for.")
            if start != have:
                progress.restarted(file.filename)
            out.truncate(start)
            out.seek(start)
            _keep_state(part, response)
            return self._copy(file, response, out, progress)

    def _copy(
        self, file: WheelFile, response: urllib3.BaseHTTPResponse, out: IO[bytes], progress: DownloadProgress
    ) -> int:
        received = 0
        try:
            for chunk in response.stream(_CHUNK, decode_content=False):
                if self._stop.is_set():
                    raise _Stopped
                out.write(chunk)
                received += len(chunk)
                progress.advanced(file.filename, len(chunk))
                if file.size is not None and out.tell() > file.size:
                    raise WrongBytesError(
                        f"{file.shown} sends more than the {file.size} bytes that its index names.", _AGAIN
                    )
        except OSError as error:
            raise EnvironmentProblem(
                f"{file.filename} cannot be written to the cache: {error.strerror}.",
                f"Make room, or set {CACHE_VARIABLE} to another disk.",
            ) from error
        return received


_AGAIN = "Try again later, or another index; nothing wrong was kept."


def _check(file: WheelFile, part: Path) -> str:
    """The sha256 of a whole download, after comparing size and hash with what the index names."""
    size = part.stat().st_size
    if file.size is not None and size < file.size:
        raise UnreachableError(f"{file.shown} ended after {size} of {file.size} bytes.", _AGAIN)
    digest = hash_file(part)
    expected = file.best_hash
    if expected is not None:
        actual = digest if expected[0] == "sha256" else hash_file(part, expected[0])
        if actual != expected[1]:
            raise WrongBytesError(
                f"{file.shown} is not the file that its index names: its {expected[0]} differs.", _AGAIN
            )
    elif not zipfile.is_zipfile(part):
        raise WrongBytesError(f"{file.shown} is not a wheel.", _AGAIN)
    with part.open("rb+") as handle:
        os.fsync(handle.fileno())
    return digest


@contextmanager
def _alone(part: Path) -> Iterator[Path]:
    """A download of its own: a second process waits here until the first is through."""
    with locked(part.with_suffix(".lock"), f"The download {part.name}"):
        try:
            part.touch()
            yield part
        finally:
            with suppress(OSError):
                if part.exists() and part.stat().st_size == 0:
                    part.unlink()


def _restart(out: IO[bytes], part: Path, file: WheelFile, progress: DownloadProgress) -> None:
    out.truncate(0)
    part.with_suffix(".json").unlink(missing_ok=True)
    progress.restarted(file.filename)


def _discard(part: Path) -> None:
    part.write_bytes(b"")
    part.with_suffix(".json").unlink(missing_ok=True)


def _starts_at(response: urllib3.BaseHTTPResponse, offset: int) -> bool:
    found = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    return found is not None and int(found[1]) == offset


def _total(response: urllib3.BaseHTTPResponse) -> int | None:
    found = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("content-range", ""))
    return int(found[1]) if found else None


def _keep_state(part: Path, response: urllib3.BaseHTTPResponse) -> None:
    etag = response.headers.get("etag", "")
    strong = etag if etag and not etag.startswith("W/") else ""
    write_atomically(part.with_suffix(".json"), msgspec.json.encode(_State(strong)))


def _read_state(part: Path) -> _State:
    try:
        return msgspec.json.decode(part.with_suffix(".json").read_bytes(), type=_State)
    except (OSError, msgspec.DecodeError):
        return _State()


def _failures_first(futures: Mapping[Future[Fetched], WheelFile]) -> list[Future[Fetched]]:
    """Real failures before downloads that were only stopped by them."""

    def order(future: Future[Fetched]) -> int:
        error = future.exception() if not future.cancelled() else _Stopped()
        return 0 if error and not isinstance(error, _Stopped) else 1

    return sorted(futures, key=order)
