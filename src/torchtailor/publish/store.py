"""Where an index is published: a local folder, or anything that fsspec writes to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from torchtailor.disk import (
    DamagedFileError,
    disk_errors,
    hash_file,
    locked,
    place_verified,
    remove_abandoned,
    write_atomically,
)
from torchtailor.errors import BadInputError, EnvironmentProblem, NetworkError, TorchtailorError, UsageError
from torchtailor.fetch.locations import local_path, redact
from torchtailor.index.pages import HTML_NAME, IndexedFile
from torchtailor.trust import Limit, is_relative_path, read_limited

TARGETS = "targets.json"  # the folders of the index
FILES = "files"  # what it offers

_OTHER_TYPE = "application/octet-stream"
_PIECE = 8 << 20
_WHOLE = "What is published is whole; publish again to add the rest."


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store, and when it came there (seconds since 1970; None where the store does not know)."""

    path: str
    size: int
    stored: float | None


class Store(Protocol):
    """Files by path; each appears whole or not at all."""

    local: bool

    def read(self, path: str) -> bytes | None: ...

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        """Whether a file is there with these bytes; `listed` is whether a page lists it already."""

    def put_file(self, source: Path, path: str, sha256: str) -> None:
        """Store a copy of a file, which must have this hash."""

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None: ...

    def fetch_file(self, path: str, folder: Path) -> Path | None: ...

    def remove(self, path: str) -> None: ...

    def files(self, folder: str) -> Iterable[StoredFile]: ...

    def lock(self) -> Any: ...


def stored_at(file: IndexedFile) -> str:
    """Where a listed file lies in the store; empty for one that is listed by an address elsewhere."""
    if not file.url.startswith("../../"):
        return ""
    place = unquote(file.url.removeprefix("../../"))
    if not (is_relative_path(place) and place.startswith(f"{FILES}/")):
        raise BadInputError(
            f"The place that the index lists for {file.filename} leads out of the index.", "Publish it again."
        )
    return place


def open_store(to: str) -> Store:
    """The store of `--to`: a path, a file: URL, or a URL that fsspec supports."""
    scheme = urlsplit(to).scheme
    if scheme in ("", "file"):
        return FolderStore(local_path(to) or Path(to))
    return RemoteStore(to)


class FolderStore:
    """A folder on this machine."""

    local = True

    def __init__(self, root: Path) -> None:
        self._root = root  # made by who publishes to it, not by who only looks
        if root.exists() and not root.is_dir():
            raise EnvironmentProblem(f"{root} is not a folder.", "Give another folder with --to.")

    def read(self, path: str) -> bytes | None:
        try:
            return read_limited(self._root / path, Limit.PAGE)
        except FileNotFoundError:
            return None

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        place = self._root / path
        return place.is_file() and place.stat().st_size == size and hash_file(place) == sha256

    def put_file(self, source: Path, path: str, sha256: str) -> None:
        place = self._root / path
        with disk_errors(self._root, unchanged=_WHOLE):
            place.parent.mkdir(parents=True, exist_ok=True)
            place_verified(source, place, sha256, staging=self._root)

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None:
        place = self._root / path
        with disk_errors(self._root, unchanged=_WHOLE):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, content, staging=self._root)

    def fetch_file(self, path: str, folder: Path) -> Path | None:
        """The file on this machine, where it is; None where there is none."""
        place = self._root / path
        return place if place.is_file() else None

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)
        with suppress(OSError):  # others are still in it
            (self._root / path).parent.rmdir()

    def files(self, folder: str) -> Iterator[StoredFile]:
        for path in sorted((self._root / folder).rglob("*")):
            if path.is_file():
                status = path.stat()  # a new name of an old file (a hard link) is a change of its status
                yield StoredFile(path.relative_to(self._root).as_posix(), status.st_size, status.st_ctime)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One publisher at a time; readers never wait."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._root} cannot be created: {error.strerror}.", "Give another folder with --to."
            ) from error
        with locked(self._root / ".torchtailor.lock", f"The index {self._root}"):
            remove_abandoned(self._root)  # of a publisher that was killed
            yield


class RemoteStore:
    """A bucket or server, through fsspec; its uploads are atomic."""

    local = False

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise EnvironmentProblem(
                f"Publishing to {redact(url)} needs fsspec.", "Install torchtailor[publish], and s3fs or the like."
            ) from error
        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"{redact(url)} cannot be published to: {_reason(error)}.", "Install the fsspec plug-in it names."
            ) from error
        except Exception as error:  # of a plug-in that connects at once
            raise _unusable(redact(url), "reached", error) from error
        self._shown = redact(url)
        self._s3 = urlsplit(url).scheme in ("s3", "s3a")

    def read(self, path: str) -> bytes | None:
        with self._explained("read"):
            try:
                self._system.invalidate_cache()
                content: bytes = self._system.cat_file(self._at(path))
            except FileNotFoundError:
                return None
            return content

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        """By its size where the page lists it, whose publisher checked its bytes; otherwise they are read back."""
        with self._explained("read"):
            try:
                same = self._system.info(self._at(path)).get("size") == size
                return bool(same) and (listed or self._hash(path) == sha256)
            except FileNotFoundError:
                return False

    def _hash(self, path: str) -> str:
        hasher = hashlib.sha256()
        with self._system.open(self._at(path), "rb") as file:
            while piece := file.read(_PIECE):
                hasher.update(piece)
        return hasher.hexdigest()

    def put_file(self, source: Path, path: str, sha256: str) -> None:
        if hash_file(source) != sha256:
            raise DamagedFileError(source)
        with self._explained("written to"):
            self._make_parent(path)
            self._system.put_file(str(source), self._at(path))

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None:
        with self._explained("written to"):
            self._make_parent(path)
            extra = {"ContentType": content_type} if self._s3 else {}
            self._system.pipe_file(self._at(path), content, **extra)
            if self._s3 and path.endswith(HTML_NAME):
                self._put_folder_page(content, path.removesuffix(HTML_NAME), content_type)

    def _put_folder_page(self, content: bytes, folder: str, content_type: str) -> None:
        """The same page under the folder's own name: S3 itself serves no index documents."""
        bucket, _, key = self._at(folder).partition("/")
        self._system.call_s3("put_object", Bucket=bucket, Key=key, Body=content, ContentType=content_type)

    def fetch_file(self, path: str, folder: Path) -> Path | None:
        """The file on this machine, copied into a folder; None where there is none."""
        place = folder / path.rpartition("/")[2]
        with self._explained("read"):
            try:
                self._system.get_file(self._at(path), str(place))
            except FileNotFoundError:
                place.unlink(missing_ok=True)
                return None
        return place

    def remove(self, path: str) -> None:
        with self._explained("written to"), suppress(FileNotFoundError):
            self._system.rm_file(self._at(path))

    def files(self, folder: str) -> Iterator[StoredFile]:
        with self._explained("read"):
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._at(folder), detail=True)
            except FileNotFoundError:
                return
        root = self._root.rstrip("/") + "/"
        for path, facts in sorted(found.items()):
            inside = path[path.index(root) + len(root) :] if root in path else path
            yield StoredFile(inside, int(facts.get("size") or 0), _stored(facts))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Object stores have no locks; a publisher reads its pages again and repeats a lost update."""
        yield

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def _make_parent(self, path: str) -> None:
        if not self._s3:
            self._system.makedirs(self._at(path).rsplit("/", 1)[0], exist_ok=True)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except TorchtailorError:
            raise
        except Exception as error:  # every plug-in has errors of its own
            raise _unusable(self._shown, what, error) from error


def _unusable(shown: str, what: str, error: Exception) -> NetworkError:
    return NetworkError(
        f"{shown} cannot be {what}: {_reason(error)}.",
        "Check the URL, the network and the credentials of its provider.",
    )


def _reason(error: Exception) -> str:
    """What a plug-in says, without a login; the name of its error where it says nothing."""
    return redact(str(error)).rstrip(".") or type(error).__name__


def _stored(facts: Mapping[str, Any]) -> float | None:
    """When an object came to its store: every kind of store has its own name for it."""
    for name in ("LastModified", "last_modified", "updated", "created", "mtime"):
        value = facts.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
