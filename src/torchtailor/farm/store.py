"""The store of a farm: the output of every finished job under its key, in a folder or a bucket.

    blobs/ab/abcd...      files by their SHA-256, written once
    records/ab/KEY        what a job gave: its files, by path and SHA-256; written last, so it names only whole files
    tokens/NAME           by which a run finds out whether a worker sees the same store

Each appears whole or not at all: in a folder by a rename, in a bucket because an upload is one. What is read is checked
against its SHA-256. An operation that fails is repeated a few times, with a pause; a bucket may be slow for a while.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from torchtailor.disk import (
    DamagedFileError,
    check_intact,
    disk_errors,
    hash_file,
    link_or_copy,
    new_file,
    place_verified,
    write_atomically,
)
from torchtailor.errors import BadInputError, EnvironmentProblem, NetworkError, TorchtailorError, UsageError
from torchtailor.fetch.locations import local_path, redact
from torchtailor.trust import Limit, RelativePath, Sha256, Size, decode_json, is_sha256, read_limited

_KEPT = "Finished jobs are kept in the store."
_PIECE = 8 << 20
_PAUSES = (0.2, 1.0, 3.0)  # seconds before each further try
_DAY = 86_400.0  # seconds; a token that is older is of a run that was killed
_PARALLEL = 16  # questions at a time, of a bucket that answers in 50 ms
# Errors of botocore and google-auth where nobody has logged in: asking again changes nothing.
_NO_LOGIN = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
_S3 = ("s3", "s3a")
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
_S3_PATIENCE = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}

T = TypeVar("T")


class FarmFile(msgspec.Struct, frozen=True):
    """A file of an output."""

    path: RelativePath
    sha256: Sha256
    size: Size


class JobRecord(msgspec.Struct, frozen=True):
    """What a finished job gave."""

    kind: str
    files: tuple[FarmFile, ...]
    facts: dict[str, Any] = {}
    worker: str = ""
    seconds: float = 0.0

    def file(self, path: str) -> FarmFile:
        return next(file for file in self.files if file.path == path)


class MissingOutputError(EnvironmentProblem):
    """The store does not have, or no longer has, the output of a job; that job has to run again."""

    def __init__(self, key: str, shown: str) -> None:
        super().__init__(f"The store {shown} does not have the output {key[:12]}.", "The job that makes it runs again.")
        self.key = key


class _Place(Protocol):
    """Where the files of a store lie."""

    shown: str

    def read(self, path: str) -> bytes | None: ...

    def write(self, path: str, content: bytes) -> None: ...

    def has(self, path: str) -> bool: ...

    def upload(self, source: Path, path: str, sha256: str) -> None: ...

    def download(self, path: str, target: Path, sha256: str, *, link: bool) -> bool:
        """False where there is no such file; with `link`, the copy is read-only, and may be the same file."""

    def remove(self, path: str) -> None: ...

    def remove_older(self, folder: str, before: float) -> None:
        """Remove files of a folder that were written before a time, where that is known."""


class FarmStore:
    """Outputs by key; may be used by several threads."""

    def __init__(self, place: _Place, *, pauses: Sequence[float] = _PAUSES) -> None:
        self._place, self._pauses = place, pauses
        self.shown = place.shown

    # Outputs

    def record(self, key: str) -> JobRecord | None:
        """What the job of this key gave; None where it has not finished."""
        content = self._try(lambda: self._place.read(_record(key)))
        if content is None:
            return None
        try:
            return decode_json(content, JobRecord, "A record of the store")
        except BadInputError:
            self._try(lambda: self._place.remove(_record(key)))  # damaged: its job runs again
            return None

    def need(self, key: str) -> JobRecord:
        """The same where the job must have finished."""
        found = self.record(key)
        if found is None:
            raise MissingOutputError(key, self.shown)
        return found

    def finished(self, keys: Iterable[str]) -> frozenset[str]:
        """Which of these keys have an output here."""
        wanted = tuple(dict.fromkeys(keys))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            there = pool.map(lambda key: self._try(lambda: self._place.has(_record(key))), wanted)
            return frozenset(key for key, found in zip(wanted, there, strict=True) if found)

    def lost(self, keys: Iterable[str]) -> frozenset[str]:
        """Which of these keys have no output here, or one that is not whole."""
        wanted = tuple(dict.fromkeys(keys))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return frozenset(key for key, whole in zip(wanted, pool.map(self._whole, wanted), strict=True) if not whole)

    def _whole(self, key: str) -> bool:
        record = self.record(key)
        if record is None:
            return False
        return all(self._has(file.sha256) for file in record.files)

    def _has(self, sha256: str) -> bool:
        return self._try(lambda: self._place.has(_blob(sha256)))

    def finish(self, key: str, record: JobRecord) -> None:
        """Say that a job has finished; its files must be here. Where another worker was quicker, its output stays."""
        if self.record(key) is None:
            content = msgspec.json.encode(record, order="deterministic")
            self._try(lambda: self._place.write(_record(key), content))

    def forget(self, key: str) -> None:
        """Remove an output whose files are lost or damaged."""
        self._try(lambda: self._place.remove(_record(key)))

    # Files

    def put(self, source: Path, path: str, sha256: str | None = None) -> FarmFile:
        """Store a file; what is here already is not sent again."""
        digest = sha256 or hash_file(source)
        size = source.stat().st_size
        if not self._has(digest):
            self._try(lambda: self._place.upload(source, _blob(digest), digest))
        return FarmFile(path, digest, size)

    def get(self, key: str, file: FarmFile, target: Path, *, link: bool = True) -> None:
        """Put a file of an output at a place of this machine; it has its SHA-256, or the output is forgotten.

        With `link` it is one that nobody changes.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._try(lambda: self._place.download(_blob(file.sha256), target, file.sha256, link=link))
        except DamagedFileError:
            self._try(lambda: self._place.remove(_blob(file.sha256)))
            found = False
        if not found:
            self.forget(key)
            raise MissingOutputError(key, self.shown)

    # Tokens

    def check_writable(self) -> None:
        """Say that a store cannot be used before workers are started for it; old tokens are removed."""
        name = f"tokens/{secrets.token_hex(8)}"
        try:
            self.put_text(name, name)
            self.remove_text(name)
            self._place.remove_older("tokens", time.time() - _DAY)
        except EnvironmentProblem as error:
            reason = error.message.rpartition(": ")[2].rstrip(".")
            raise EnvironmentProblem(
                f"The store {self.shown} cannot be written: {reason}.", "Give another folder or bucket with --store."
            ) from error

    def put_text(self, name: str, text: str) -> None:
        self._try(lambda: self._place.write(name, text.encode("utf-8", "replace")))

    def read_text(self, name: str) -> str | None:
        content = self._try(lambda: self._place.read(name))
        return None if content is None else content.decode("utf-8", "replace")

    def remove_text(self, name: str) -> None:
        self._try(lambda: self._place.remove(name))

    def _try(self, work: Callable[[], T]) -> T:
        for pause in self._pauses:
            try:
                return work()
            except NetworkError:
                time.sleep(pause)
        return work()


def check_store(where: str, option: str = "--store") -> None:
    """Refuse what no job could write to, whether its plug-in is here or not; `option` is what has it."""
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


def is_local(where: str) -> bool:
    """Whether a store is a folder of this machine, or one that it sees."""
    return "://" not in where or urlsplit(where).scheme == "file"


def open_farm_store(where: str) -> FarmStore:
    """The store of `--store`: a folder, or a URL that fsspec supports."""
    if is_local(where):
        return FarmStore(_Folder(Path(absolute_store(where))))
    return FarmStore(_Bucket(where))


def store_folder(where: str) -> Path | None:
    """The folder that a store is; None of a bucket or server."""
    return Path(absolute_store(where)) if is_local(where) else None


def absolute_store(where: str) -> str:
    """The same store for processes in another folder."""
    if is_local(where):
        return str(Path(local_path(where) or where).expanduser().absolute())
    return where


def _blob(sha256: str) -> str:
    return f"blobs/{_checked(sha256)[:2]}/{sha256}"


def _record(key: str) -> str:
    return f"records/{_checked(key)[:2]}/{key}"


def _checked(key: str) -> str:
    """A key becomes part of a path; it may come from a document."""
    if not is_sha256(key):
        raise BadInputError(f"{key[:80]!r} is not a key of the store.", "Use the same version on every machine.")
    return key


class _Folder:
    """A folder that all workers see, or that of one machine."""

    def __init__(self, root: Path) -> None:
        self._root, self.shown = root, str(root)
        if root.exists() and not root.is_dir():
            raise EnvironmentProblem(f"{root} is not a folder.", "Give another store with --store.")

    def read(self, path: str) -> bytes | None:
        try:
            content = read_limited(self._root / path, Limit.MANIFEST)
        except FileNotFoundError:
            return None
        except BadInputError:  # a folder, or something else that no worker wrote
            return b""
        except OSError as error:
            raise _unreadable(self.shown, error) from error
        with suppress(OSError):
            os.utime(self._root / path)  # it is in use: `cache prune` goes by that
        return content

    def write(self, path: str, content: bytes) -> None:
        with disk_errors(self._root, unchanged=_KEPT):
            place = self._made(path)
            write_atomically(place, content)

    def has(self, path: str) -> bool:
        return (self._root / path).is_file()

    def upload(self, source: Path, path: str, sha256: str) -> None:
        """A hard link where the file is read-only and on the same disk: nobody changes those."""
        with disk_errors(self._root, unchanged=_KEPT):
            place = self._made(path)
            status = source.stat()
            if status.st_mode & 0o222 or status.st_dev != place.parent.stat().st_dev:
                place_verified(source, place, sha256)
                place.chmod(0o444)
            else:
                place_verified(source, place, sha256, link=True)

    def download(self, path: str, target: Path, sha256: str, *, link: bool) -> bool:
        place = self._root / path
        try:
            check_intact(place, sha256)
        except FileNotFoundError:
            return False
        except IsADirectoryError as error:
            raise DamagedFileError(place) from error
        except OSError as error:
            raise _unreadable(self.shown, error) from error
        with disk_errors(target.parent, unchanged=_KEPT):
            if link:
                link_or_copy(place, target)
            else:
                place_verified(place, target, sha256)
        return True

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError), disk_errors(self._root, unchanged=_KEPT):
            _remove(self._root / path)

    def remove_older(self, folder: str, before: float) -> None:
        with suppress(OSError):
            for path in (self._root / folder).iterdir():
                if path.stat().st_mtime < before:
                    _remove(path)

    def _made(self, path: str) -> Path:
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            _remove(place)
        return place


def _remove(path: Path) -> None:
    """A file; or a folder of its name, which nobody but a damaged disk or a slip of the hand makes."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unused_files(root: Path, before: float) -> tuple[Path, ...]:
    """Files of a store in a folder that were last used before a time; what a newer record names is in use.

    What is removed while a run needs it is made again.
    """

    def old(path: Path) -> bool:
        return path.is_file() and path.stat().st_mtime < before

    records = sorted((root / "records").glob("*/*"))
    needed: set[str] = set()
    for path in records:
        if not old(path):
            with suppress(BadInputError, OSError):
                record = decode_json(read_limited(path, Limit.MANIFEST), JobRecord, "A record of the store")
                needed |= {file.sha256 for file in record.files}
    blobs = [path for path in sorted((root / "blobs").glob("*/*")) if path.name not in needed]
    others = [path for name in ("objects", "nix", "tokens") for path in sorted((root / name).rglob("*"))]
    return tuple(path for path in (*records, *blobs, *others) if old(path))


def _unreadable(shown: str, error: OSError) -> TorchtailorError:
    """A network file system that stalls is tried again; one that forbids is not."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, PermissionError):
        return EnvironmentProblem(f"The store {shown} cannot be read: {reason}.", "Allow it for every worker.")
    return NetworkError(f"The store {shown} cannot be read: {reason}.", "Run the same command again.")


class _Bucket:
    """A bucket or server, through fsspec."""

    def __init__(self, url: str) -> None:
        self.shown = redact(url)
        try:
            import fsspec
        except ImportError as error:
            raise EnvironmentProblem(
                f"The store {self.shown} needs fsspec.", "Install torchtailor[farm], and s3fs or the like."
            ) from error
        options = {"config_kwargs": _S3_PATIENCE} if urlsplit(url).scheme in _S3 else {}
        try:
            self._system, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"{self.shown} cannot be a store: {error}.", "Install the fsspec plug-in it names."
            ) from error
        self._root = root.rstrip("/")
        self._flat = urlsplit(url).scheme in _S3  # it has no folders to make

    def read(self, path: str) -> bytes | None:
        def work() -> bytes | None:
            try:
                content: bytes = self._system.cat_file(self._at(path))
            except FileNotFoundError:
                return None
            return content

        return self._explained("read", work)

    def write(self, path: str, content: bytes) -> None:
        def work() -> None:
            self._make_parent(path)
            self._system.pipe_file(self._at(path), content)

        self._explained("written to", work)

    def has(self, path: str) -> bool:
        return bool(self._explained("read", lambda: self._system.exists(self._at(path))))

    def upload(self, source: Path, path: str, sha256: str) -> None:
        if hash_file(source) != sha256:
            raise DamagedFileError(source)

        def work() -> None:
            self._make_parent(path)
            self._system.put_file(str(source), self._at(path))

        self._explained("written to", work)

    def download(self, path: str, target: Path, sha256: str, *, link: bool) -> bool:
        def work() -> bool:
            hasher = hashlib.sha256()
            mode = 0o444 if link else None
            try:
                with self._system.open(self._at(path), "rb") as reader, new_file(target, mode=mode) as writer:
                    while piece := reader.read(_PIECE):
                        hasher.update(piece)
                        writer.write(piece)
                    if hasher.hexdigest() != sha256:
                        raise DamagedFileError(target)
            except FileNotFoundError:
                return False
            return True

        return self._explained("read", work, target.parent)

    def remove(self, path: str) -> None:
        def work() -> None:
            with suppress(FileNotFoundError):
                self._system.rm_file(self._at(path))

        self._explained("written to", work)

    def remove_older(self, folder: str, before: float) -> None:
        with suppress(Exception):  # of plug-ins that know no times, too
            for path in self._system.ls(self._at(folder), detail=False):
                if self._system.modified(path).timestamp() < before:
                    self._system.rm_file(path)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_parent(self, path: str) -> None:
        if not self._flat:
            self._system.makedirs(self._at(path).rsplit("/", 1)[0], exist_ok=True)

    def _explained(self, what: str, work: Callable[[], T], here: Path | None = None) -> T:
        """Every plug-in has errors of its own; all but a refusal are worth another try."""
        try:
            return work()
        except TorchtailorError:
            raise
        except PermissionError as error:
            raise EnvironmentProblem(
                f"The store {self.shown} cannot be {what}: {error}.", "Check the credentials of its provider."
            ) from error
        except Exception as error:
            if type(error).__name__ in _NO_LOGIN:
                reason = str(error).rstrip(".")
                raise EnvironmentProblem(
                    f"The store {self.shown} cannot be {what}: there are no credentials for it ({reason}).",
                    "Set them as its provider says, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or "
                    "AWS_PROFILE, here and on every worker.",
                ) from error
            if here is not None and isinstance(error, OSError) and error.errno and error.filename:
                with disk_errors(here, unchanged=_KEPT):
                    raise
            raise NetworkError(
                f"The store {self.shown} cannot be {what}: {error or type(error).__name__}.",
                "Check the URL and its provider, and run the same command again.",
            ) from error
