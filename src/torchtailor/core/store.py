"""Files by path in a folder or, through fsspec, in a bucket or on a server: for the cache, the farm and publishing.

Each file appears whole or not at all: in a folder by a rename, in a bucket because an upload is one. What is written
and what is read is checked against its SHA-256, and only plain files are opened. What fails for a while is tried again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from torchtailor.core.disk import (
    DamagedFileError,
    check_intact,
    disk_errors,
    expand_home,
    hash_file,
    is_own_folder,
    locked,
    new_file,
    place_verified,
    plain_file,
    remove_abandoned,
    write_atomically,
)
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError, TorchtailorError, UsageError
from torchtailor.core.trust import Limit, read_limited
from torchtailor.core.urls import local_path, redact

_REMOVE = "Find out who has put it there, and remove it."
_KEPT = "What is in the store is whole; run the same command again to add the rest."
_OTHER_TYPE = "application/octet-stream"
_PAGE = "index.html"  # that a web server shows for a folder
_PIECE = 8 << 20
_PAUSES = (0.2, 1.0, 3.0)  # seconds before each further try
# Errors of botocore and google-auth where nobody has logged in: asking again changes nothing.
_NO_LOGIN = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
_S3 = ("s3", "s3a")
_S3_PATIENCE = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}
_BUCKETS = (*_S3, "gs", "gcs", "abfs", "az", "oss", "tos", "oci")
# What of fsspec only reads, or wraps another place.
_READ_ONLY = frozenset(
    {"http", "https", "data", "git", "github", "gist", "zip", "tar", "libarchive", "reference", "cached", "filecache"}
    | {"simplecache", "blockcache", "dir", "generic", "asyncwrapper", "async_wrapper", "asynclocal", "pyscript", "jlab"}
    | {"jupyter", "dvc", "wandb"}
)
# What it can write to, some of it with a plug-in that need not be on this machine.
_WRITABLE = frozenset(
    {*_BUCKETS, "abfss", "adl", "sftp", "ssh", "ftp", "smb", "webdav", "hdfs", "webhdfs", "hf", "dbfs"}
)
_STORES = "Give a folder, or a URL that fsspec writes to: s3://BUCKET/PATH, gs://..., abfs://..., sftp://..."

_TURNS = ".turns"
_TURN = 0.5  # seconds between two looks whether a turn is over
_BEAT = 10.0  # seconds between two signs of life of who has a turn
_SILENT = 60.0  # seconds without one until its process is taken for gone
_OLD_TURNS = 20  # that are kept for who looked some time ago

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store, and when it came there (seconds since 1970; None where the store does not know)."""

    path: str
    size: int
    stored: float | None


class Store(Protocol):
    """Files by path; each appears whole or not at all."""

    local: bool
    shown: str

    def read(self, path: str) -> bytes | None:
        """A small file; None where there is none."""

    def exists(self, path: str) -> bool: ...

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        """Whether a file is there with these bytes; of one that is `listed`, which was checked when it was written, a
        bucket is only asked for its size."""

    def put_file(self, source: Path, path: str, sha256: str, *, link: bool = False) -> None:
        """Store a file, which must have this hash; with `link` one that nobody changes, which is not copied where both
        are on one disk."""

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None: ...

    def create(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> bool:
        """The same where there is no such file; False where there is one, which stays."""

    def fetch_file(self, path: str, sha256: str, target: Path, *, most: int | None = None) -> Path | None:
        """A file on this machine: where it lies, or downloaded to `target`, read-only; None where there is none.

        One without this hash, or with more than `most` bytes, is a DamagedFileError.
        """

    def remove(self, path: str) -> None: ...

    def files(self, folder: str) -> Iterable[StoredFile]: ...

    def lock(self) -> AbstractContextManager[None]:
        """One writer at a time; readers never wait."""


def is_local(where: str) -> bool:
    """Whether a store is a folder of this machine, or one that it sees."""
    try:
        return "://" not in where or urlsplit(where).scheme == "file"
    except ValueError as error:  # such as http://[
        raise UsageError(
            f"{where[:200]!r} is not a URL.", "Give a folder, or a URL such as s3://bucket/path."
        ) from error


def store_folder(where: str) -> Path | None:
    """The folder that a store is; None of a bucket or server."""
    return expand_home(local_path(where) or where).absolute() if is_local(where) else None


def open_store(where: str, option: str) -> FolderStore | RemoteStore:
    """A store: a folder, a file: URL, or a URL that fsspec supports; `option` is what has it."""
    folder = store_folder(where)
    return RemoteStore(where, option) if folder is None else FolderStore(folder, option)


def check_store(where: str, option: str) -> None:
    """Refuse what nobody could write to, whether its plug-in is here or not; `option` is what has it."""
    if not where.strip():
        raise UsageError(f"{option} is empty.", "Give a folder or a URL such as s3://BUCKET/PATH, or omit it.")
    shown = f"{option} {redact(where)}"
    try:
        scheme, bucket = urlsplit(where).scheme, urlsplit(where).netloc
    except ValueError as error:  # of brackets
        raise UsageError(f"{shown} is not a URL: {error}.", _STORES) from error
    if scheme in _WRITABLE - {"hdfs"} and not bucket:
        what = "bucket" if scheme in _BUCKETS else "host"
        raise UsageError(f"{shown} names no {what}.", f"Write {scheme}://{what.upper()}/PATH.")
    if is_local(where):
        return
    if scheme == "memory":
        raise UsageError(f"{shown}: memory:// is lost when its process ends.", _STORES)
    if scheme not in _writable():
        raise UsageError(f"{shown}: files cannot be written to {scheme}://.", _STORES)


def _writable() -> frozenset[str]:
    """Also what plug-ins of this machine's fsspec add."""
    with suppress(ImportError):
        import fsspec

        return _WRITABLE | (frozenset(fsspec.available_protocols()) - _READ_ONLY)
    return _WRITABLE


class FolderStore:
    """A folder of this machine, or one that several see."""

    local = True

    def __init__(self, root: Path, option: str = "--to", *, pauses: Sequence[float] = _PAUSES) -> None:
        self.root = root  # made by who writes to it, not by who only looks
        self.shown, self._option, self._pauses = str(root), option, pauses
        self._alone = False
        if root.exists() and not root.is_dir():
            raise EnvironmentProblem(f"{root} is not a folder.", f"Give another folder with {option}.")

    def read(self, path: str) -> bytes | None:
        def plain() -> bytes:
            with plain_file(self._place(path)) as descriptor:
                return read_limited(descriptor, Limit.PAGE)

        return self._reading(plain)

    def exists(self, path: str) -> bool:
        try:
            return self._place(path).is_file()
        except FileNotFoundError:
            return False

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        try:
            return self.fetch_file(path, sha256, self.root, most=size) is not None
        except DamagedFileError:
            return False

    def put_file(self, source: Path, path: str, sha256: str, *, link: bool = False) -> None:
        with self._writing(path) as place:
            fixed = link and not source.stat().st_mode & 0o222
            if fixed and source.stat().st_dev == place.parent.stat().st_dev:
                place_verified(source, place, sha256, link=True)
            else:
                place_verified(source, place, sha256, staging=self.root)
                if link:
                    place.chmod(0o444)

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None:
        with self._writing(path) as place:
            write_atomically(place, content, staging=self.root)

    def create(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> bool:
        """Nobody else writes meanwhile: folders have locks."""
        if self.exists(path):
            return False
        self.put_bytes(content, path, content_type)
        return True

    def fetch_file(self, path: str, sha256: str, target: Path, *, most: int | None = None) -> Path | None:
        def check() -> Path:
            place = self._place(path)
            with plain_file(place) as descriptor:
                if most is not None and os.fstat(descriptor).st_size > most:
                    raise DamagedFileError(place)  # perhaps a hole of terabytes, which nobody wants to read
                check_intact(place, sha256, descriptor)
            return place

        return self._reading(check)

    def remove(self, path: str) -> None:
        with disk_errors(self.root, unchanged=_KEPT), suppress(FileNotFoundError):
            place = self._place(path)
            _remove(place)
            if self._alone:
                with suppress(OSError):  # other files are still in it
                    place.parent.rmdir()

    def files(self, folder: str) -> Iterator[StoredFile]:
        try:
            top = self._real_folder(folder)
        except FileNotFoundError:
            return
        for path in sorted(top.rglob("*")):
            if path.is_file():
                status = path.stat()  # a new name of an old file (a hard link) is a change of its status
                yield StoredFile(path.relative_to(self.root).as_posix(), status.st_size, status.st_ctime)

    @contextmanager
    def lock(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.root} cannot be created: {error.strerror}.", f"Give another folder with {self._option}."
            ) from error
        with locked(self.root / ".torchtailor.lock", f"The store {self.root}"):
            remove_abandoned(self.root)  # of a writer that was killed
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def _reading(self, work: Callable[[], T]) -> T | None:
        """None where there is no such file; a network file system that stalls is tried again, one that forbids not."""

        def explained() -> T | None:
            try:
                return work()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except PermissionError as error:
                raise EnvironmentProblem(
                    f"The store {self.shown} cannot be read: {error.strerror}.", "Allow it for all who use it."
                ) from error
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise NetworkError(
                    f"The store {self.shown} cannot be read: {reason}.", "Run the same command again."
                ) from error

        return _patiently(explained, self._pauses)

    @contextmanager
    def _writing(self, path: str) -> Iterator[Path]:
        """The place of a file, in a folder that is there; what is there and is no plain file is damage, and goes."""
        with disk_errors(self.root, unchanged=_KEPT):
            self.root.mkdir(parents=True, exist_ok=True)
            place = self._place(path, make=True)
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(place.lstat().st_mode):
                    _remove(place)
            yield place

    def _place(self, path: str, *, make: bool = False) -> Path:
        folder, _, name = path.rpartition("/")
        return self._real_folder(folder, make=make) / name

    def _real_folder(self, path: str, *, make: bool = False) -> Path:
        """A folder of the store, which no link leads out of; with `make`, what is there instead of one is damage, and
        goes. Only the first one may be on another disk, by a link that this user or root has made."""
        folder = self.root
        for name in PurePosixPath(path).parts:
            folder /= name
            if is_own_folder(folder, may_link=folder.parent == self.root):
                continue
            if not make:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            with suppress(FileNotFoundError, IsADirectoryError):  # somebody else was quicker
                folder.unlink()
            folder.mkdir(exist_ok=True)
        return folder


def _remove(path: Path) -> None:
    """Whatever has this name; a folder is made by a damaged disk, a slip of the hand, or somebody who means harm."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


class RemoteStore:
    """A bucket or server, through fsspec; its uploads are atomic."""

    local = False

    def __init__(self, url: str, option: str = "--to", *, pauses: Sequence[float] = _PAUSES) -> None:
        self.shown, self._pauses = redact(url), pauses
        try:
            import fsspec
        except ImportError as error:
            raise EnvironmentProblem(
                f"The store {self.shown} needs fsspec.", "Install it, and its plug-in for this URL, such as s3fs."
            ) from error
        self._s3 = urlsplit(url).scheme in _S3  # it has no folders to make
        options = {"config_kwargs": _S3_PATIENCE} if self._s3 else {}
        try:
            self._system, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"{option} {self.shown} cannot be written to: {_reason(error)}.", "Install the fsspec plug-in it names."
            ) from error
        except Exception as error:  # of a plug-in that connects at once
            raise self._unusable("reached", error) from error
        self._root = root.rstrip("/")

    def read(self, path: str) -> bytes | None:
        return self._explained("read", lambda: self._read(path))

    def _read(self, path: str) -> bytes:
        """No more than any page or record has: who writes there may have put anything there."""
        try:
            content: bytes = self._system.cat_file(self._at(path), start=0, end=Limit.PAGE + 1)
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:  # some refuse a range of an empty file
            if not self._is_empty(path):
                raise
            return b""
        if len(content) > Limit.PAGE:
            raise BadInputError(f"{path} in the store {self.shown} is larger than {Limit.PAGE >> 20} MB.", _REMOVE)
        return content

    def _is_empty(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            facts = self._system.info(self._at(path))
            return bool(facts.get("type") == "file" and facts.get("size") == 0)
        return False

    def exists(self, path: str) -> bool:
        return bool(self._explained("read", lambda: self._system.exists(self._at(path))))

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        def work() -> bool:
            same = self._system.info(self._at(path)).get("size") == size
            return bool(same) and (listed or self._hash(path) == sha256)

        return bool(self._explained("read", work))

    def _hash(self, path: str) -> str:
        hasher = hashlib.sha256()
        with self._system.open(self._at(path), "rb") as file:
            while piece := file.read(_PIECE):
                hasher.update(piece)
        return hasher.hexdigest()

    def put_file(self, source: Path, path: str, sha256: str, *, link: bool = False) -> None:
        if hash_file(source) != sha256:
            raise DamagedFileError(source)

        def work() -> None:
            self._make_parent(path)
            self._system.put_file(str(source), self._at(path))

        self._explained("written to", work)

    def put_bytes(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> None:
        def work() -> None:
            self._make_parent(path)
            extra = {"ContentType": content_type} if self._s3 else {}
            self._system.pipe_file(self._at(path), content, **extra)
            if self._s3 and path.endswith(_PAGE):
                self._put_folder_page(content, path.removesuffix(_PAGE), content_type)

        self._explained("written to", work)

    def create(self, content: bytes, path: str, content_type: str = _OTHER_TYPE) -> bool:
        """By a conditional write; of a store that has none, the bytes are read again, and are those of the last one."""

        def work() -> bool:
            self._make_parent(path)
            extra = {"ContentType": content_type} if self._s3 else {}
            with suppress(FileExistsError):  # perhaps ours: an answer was lost, and it was sent again
                self._system.pipe_file(self._at(path), content, mode="create", **extra)
            return self._read(path) == content

        return bool(self._explained("written to", work))

    def _put_folder_page(self, content: bytes, folder: str, content_type: str) -> None:
        """The same page under the folder's own name: S3 itself serves no index documents."""
        bucket, _, key = self._at(folder).partition("/")
        self._system.call_s3("put_object", Bucket=bucket, Key=key, Body=content, ContentType=content_type)

    def fetch_file(self, path: str, sha256: str, target: Path, *, most: int | None = None) -> Path | None:
        def work() -> Path:
            hasher = hashlib.sha256()
            with self._system.open(self._at(path), "rb") as reader, new_file(target, mode=0o444) as writer:
                while piece := reader.read(_PIECE):
                    hasher.update(piece)
                    writer.write(piece)
                    if most is not None and writer.tell() > most:
                        raise DamagedFileError(target)
                if hasher.hexdigest() != sha256:
                    raise DamagedFileError(target)
            return target

        return self._explained("read", work, target.parent)

    def remove(self, path: str) -> None:
        def work() -> None:
            with suppress(FileNotFoundError):
                self._system.rm_file(self._at(path))

        self._explained("written to", work)

    def files(self, folder: str) -> Iterator[StoredFile]:
        found = self._explained("read", lambda: self._system.find(self._at(folder), detail=True)) or {}
        root = self._root + "/"
        for path, facts in sorted(found.items()):
            inside = path[path.index(root) + len(root) :] if root in path else path
            yield StoredFile(inside, int(facts.get("size") or 0), _stored(facts))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """By turns: the next one is taken by who creates its file, which only one can, where the last one is over."""
        turns = _Turns(self)
        turns.take()
        try:
            yield
        finally:
            turns.end()

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_parent(self, path: str) -> None:
        if not self._s3:
            self._system.makedirs(self._at(path).rsplit("/", 1)[0], exist_ok=True)

    def _explained(self, what: str, work: Callable[[], T], here: Path | None = None) -> T | None:
        """Every plug-in has errors of its own; all but a refusal are worth another try. None where a file to read is
        not there; `here` is the folder of this machine that is written to."""

        def explained() -> T | None:
            try:
                if what == "read":
                    self._system.invalidate_cache()  # others write there too
                return work()
            except TorchtailorError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError) and what == "read":
                    return None
                if here is not None and isinstance(error, OSError) and error.errno and error.filename:
                    with disk_errors(here, unchanged=_KEPT):
                        raise
                raise self._unusable(what, error) from error

        return _patiently(explained, self._pauses)

    def _unusable(self, what: str, error: Exception) -> TorchtailorError:
        said = f"The store {self.shown} cannot be {what}"
        if isinstance(error, PermissionError):
            return EnvironmentProblem(f"{said}: {_reason(error)}.", "Check the credentials of its provider.")
        if type(error).__name__ in _NO_LOGIN:
            return EnvironmentProblem(
                f"{said}: there are no credentials for it ({_reason(error)}).",
                "Set them as its provider says, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, on "
                "every machine that uses it.",
            )
        return NetworkError(
            f"{said}: {_reason(error)}.", "Check the URL, the network and its provider, and run the same command again."
        )


class _Turns:
    """Turns of writers to a store without locks: `.turns/000007` is the seventh, and is empty when it is over.

    Who has a turn writes to its file again and again; if it does not change for a while, its process is gone, and the
    next turn begins. No clock is compared with another machine's.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store, self._token = store, secrets.token_hex(16)
        self._number = 0
        self._over = threading.Event()
        self._beats: threading.Thread | None = None

    def take(self) -> None:
        seen: tuple[int, bytes] | None = None
        since = time.monotonic()
        while True:
            last = max(self._numbers(), default=0)
            content = self._store.read(_turn(last)) if last else None
            if (last, content or b"") != seen:
                seen, since = (last, content or b""), time.monotonic()
            if not content or time.monotonic() - since > _SILENT:
                self._number = last + 1
                if self._store.create(self._content(0), _turn(self._number)):
                    if max(self._numbers(), default=0) == self._number:
                        break
                    self._store.remove(_turn(self._number))  # that turn was long over, and its file removed
            time.sleep(_TURN * random.uniform(0.5, 1.5))
        for number in self._numbers():
            if number < self._number - _OLD_TURNS:
                self._store.remove(_turn(number))
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def end(self) -> None:
        self._over.set()
        if self._beats:
            self._beats.join()
        with suppress(TorchtailorError):  # then the others wait a little
            self._store.put_bytes(b"", _turn(self._number))

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(_BEAT):
            count += 1
            with suppress(TorchtailorError):
                self._store.put_bytes(self._content(count), _turn(self._number))

    def _content(self, count: int) -> bytes:
        return f"{self._token} {count}\n".encode()

    def _numbers(self) -> list[int]:
        names = (file.path.rpartition("/")[2] for file in self._store.files(_TURNS))
        return [int(name) for name in names if name.isascii() and name.isdigit()]


def _turn(number: int) -> str:
    return f"{_TURNS}/{number:06}"


def _patiently(work: Callable[[], T], pauses: Sequence[float]) -> T:
    """Again after a pause, where it fails for a reason that may pass."""
    for pause in pauses:
        try:
            return work()
        except NetworkError:
            time.sleep(pause)
    return work()


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
