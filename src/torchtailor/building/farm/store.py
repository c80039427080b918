"""The store of a farm: the output of every finished job under its key, in a folder or a bucket.

blobs/ab/abcd...      files by their SHA-256, written once
records/ab/KEY        what a job gave: its files, by path and SHA-256; written last, so it names only whole files
tokens/NAME           by which a run finds out whether a worker sees the same store
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.core.disk import DamagedFileError, disk_errors, hash_file, place_verified
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError
from torchtailor.core.store import FolderStore, RemoteStore, open_store
from torchtailor.core.trust import Limit, RelativePath, Sha256, Size, decode_json, is_sha256, read_limited

_OPTION = "--store"
_DAY = 86_400.0  # seconds; a token that is older is of a run that was killed
_PARALLEL = 16  # questions at a time, of a bucket that answers in 50 ms


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


class FarmStore:
    """Outputs by key; may be used by several threads."""

    def __init__(self, files: FolderStore | RemoteStore) -> None:
        self._files = files
        self.shown = files.shown

    # Outputs

    def record(self, key: str) -> JobRecord | None:
        """What the job of this key gave; None where it has not finished."""
        path = _record(key)
        try:
            content = self._files.read(path)
            record = None if content is None else decode_json(content, JobRecord, "A record of the store")
        except BadInputError:
            self._files.remove(path)  # damaged: its job runs again
            return None
        if isinstance(self._files, FolderStore):
            with suppress(OSError):
                os.utime(self._files.root / path)  # it is in use: `cache prune` goes by that
        return record

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
            there = pool.map(lambda key: self._files.exists(_record(key)), wanted)
            return frozenset(key for key, found in zip(wanted, there, strict=True) if found)

    def lost(self, keys: Iterable[str]) -> frozenset[str]:
        """Which of these keys have no output here, or one that is not whole."""
        wanted = tuple(dict.fromkeys(keys))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return frozenset(key for key, whole in zip(wanted, pool.map(self._whole, wanted), strict=True) if not whole)

    def _whole(self, key: str) -> bool:
        record = self.record(key)
        return record is not None and all(self._has(file) for file in record.files)

    def _has(self, file: FarmFile) -> bool:
        return self._files.has(_blob(file.sha256), file.size, file.sha256, listed=True)

    def finish(self, key: str, record: JobRecord) -> None:
        """Say that a job has finished; its files must be here. Where another worker was quicker, its output stays."""
        if self.record(key) is None:
            self._files.put_bytes(msgspec.json.encode(record, order="deterministic"), _record(key), "application/json")

    def forget(self, key: str) -> None:
        """Remove an output whose files are lost or damaged."""
        self._files.remove(_record(key))

    # Files

    def put(self, source: Path, path: str, sha256: str | None = None) -> FarmFile:
        """Store a file; what is here already, and whole, is not sent again."""
        file = FarmFile(path, sha256 or hash_file(source), source.stat().st_size)
        if not self._has(file):
            self._files.put_file(source, _blob(file.sha256), file.sha256, link=True)
        return file

    def get(self, key: str, file: FarmFile, target: Path, *, link: bool = True) -> None:
        """Put a file of an output at a place of this machine; it has its SHA-256, or the output is forgotten.

        With `link` it is one that nobody changes.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._files.fetch_file(_blob(file.sha256), file.sha256, target)
            if found is not None and found != target:
                with disk_errors(target.parent, unchanged="Finished jobs are kept in the store."):
                    place_verified(found, target, file.sha256, link=link)
            elif not link:
                target.chmod(0o644)
        except DamagedFileError:
            self._files.remove(_blob(file.sha256))
            found = None
        if found is None:
            self.forget(key)
            raise MissingOutputError(key, self.shown)

    # Tokens

    def check_writable(self) -> None:
        """Say that a store cannot be used before workers are started for it; old tokens are removed."""
        name = f"tokens/{secrets.token_hex(8)}"
        try:
            with self._files.lock():
                self.put_text(name, name)
                self.remove_text(name)
                self._remove_old_tokens()
        except EnvironmentProblem as error:
            reason = error.message.rpartition(": ")[2].rstrip(".")
            raise EnvironmentProblem(
                f"The store {self.shown} cannot be written: {reason}.", "Give another folder or bucket with --store."
            ) from error

    def _remove_old_tokens(self) -> None:
        with suppress(NetworkError):
            for token in self._files.files("tokens"):
                if token.stored is not None and token.stored < time.time() - _DAY:
                    self._files.remove(token.path)

    def put_text(self, name: str, text: str) -> None:
        self._files.put_bytes(text.encode("utf-8", "replace"), name)

    def read_text(self, name: str) -> str | None:
        content = self._files.read(name)
        return None if content is None else content.decode("utf-8", "replace")

    def remove_text(self, name: str) -> None:
        self._files.remove(name)


def open_farm_store(where: str) -> FarmStore:
    """The store of `--store`."""
    return FarmStore(open_store(where, _OPTION))


def _blob(sha256: str) -> str:
    return f"blobs/{_checked(sha256)[:2]}/{sha256}"


def _record(key: str) -> str:
    return f"records/{_checked(key)[:2]}/{key}"


def _checked(key: str) -> str:
    """A key becomes part of a path; it may come from a document."""
    if not is_sha256(key):
        raise BadInputError(f"{key[:80]!r} is not a key of the store.", "Use the same version on every machine.")
    return key


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
