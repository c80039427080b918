"""The store of a farm: the output of every finished job under its key, in a folder or a bucket.

blobs/ab/abcd...      files by their SHA-256, written once
records/ab/KEY        what a job gave: its files, by path and SHA-256; written last, so it names only whole files, and
                      signed (see `records`), so that nobody else's is believed
tokens/NAME           by which a run finds out whether a worker sees the same store
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec

from torchtailor.building.farm.records import FarmFile, JobRecord, is_trusted, proves_itself, signed
from torchtailor.core.disk import DamagedFileError, disk_errors, hash_file, place_verified
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError
from torchtailor.core.store import FolderStore, RemoteStore, open_store
from torchtailor.core.trust import Limit, decode_json, is_sha256, read_limited

_OPTION = "--store"
_DAY = 86_400.0  # seconds; a token that is older is of a run that was killed
_LATE = (0.2, 1.0, 3.0)  # seconds until what was just written is looked for again
_PARALLEL = 16  # questions at a time, of a bucket that answers in 50 ms


class MissingOutputError(EnvironmentProblem):
    """The store does not have, or no longer has, the output of a job; that job has to run again."""

    def __init__(self, key: str, shown: str) -> None:
        super().__init__(f"The store {shown} does not have the output {key[:12]}.", "The job that makes it runs again.")
        self.key = key


class FarmStore:
    """Outputs by key; may be used by several threads."""

    def __init__(self, files: FolderStore | RemoteStore, secret: str = "") -> None:
        """With a `secret`, records are signed with it, and only such count as there."""
        self._files, self._secret = files, secret
        self._demanded: set[str] = set()
        self.shown = files.shown

    def demand(self, keys: Iterable[str]) -> None:
        """These keys are made of hashes that indexes listed: nobody's signature replaces that file."""
        self._demanded.update(keys)

    def _is_trusted(self, record: JobRecord, key: str) -> bool:
        return proves_itself(record, key) if key in self._demanded else is_trusted(record, key, self._secret)

    # Outputs

    def record(self, key: str) -> JobRecord | None:
        """What the job of this key gave; None where it has not finished, or where nobody who may has said so."""
        path = _record(key)
        try:
            found = self._read(path)
        except (BadInputError, DamagedFileError):
            self._files.remove(path)  # damaged: its job runs again
            return None
        if found is None or not self._is_trusted(found, key):
            return None
        if isinstance(self._files, FolderStore):
            with suppress(OSError):
                os.utime(self._files.root / path)  # it is in use: `cache prune` goes by that
        return found

    def _read(self, path: str) -> JobRecord | None:
        content = self._files.read(path)
        return None if content is None else decode_json(content, JobRecord, "A record of the store")

    def need(self, key: str) -> JobRecord:
        """The same where the job must have finished."""
        found = self.record(key)
        if found is None:
            raise MissingOutputError(key, self.shown)
        return found

    def finished(self, keys: Iterable[str]) -> frozenset[str]:
        """Which of these keys have an output here; changes nothing."""
        return frozenset(key for key, trusted in self._asked(keys).items() if trusted)

    def arrived(self, keys: Iterable[str]) -> frozenset[str]:
        """The same of outputs that others say they have just written: a network disk may show them late."""
        wanted = frozenset(keys)
        there = self.finished(wanted)
        for pause in _LATE:
            if there == wanted:
                break
            time.sleep(pause)
            there |= self.finished(wanted - there)
        return there

    def distrusted(self, keys: Iterable[str]) -> frozenset[str]:
        """Which of these keys have a record here that is not believed."""
        return frozenset(key for key, trusted in self._asked(keys).items() if trusted is False)

    def _asked(self, keys: Iterable[str]) -> dict[str, bool | None]:
        """By key, whether its record is believed; None where there is none, or a damaged one."""

        def ask(key: str) -> bool | None:
            try:
                found = self._read(_record(key))
            except (BadInputError, DamagedFileError):
                return None
            return None if found is None else self._is_trusted(found, key)

        wanted = tuple(dict.fromkeys(keys))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return dict(zip(wanted, pool.map(ask, wanted), strict=True))

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
            content = msgspec.json.encode(signed(record, key, self._secret), order="deterministic")
            self._files.put_bytes(content, _record(key), "application/json")

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

    def get_all(self, key: str, files: Iterable[tuple[FarmFile, Path]], *, link: bool | None = None) -> None:
        """Put files of an output at their places; all that are damaged are removed at once, so that they are made
        again at once. Without `link`, only wheels are files that nobody changes."""
        missing: MissingOutputError | None = None
        for file, target in files:
            try:
                self.get(key, file, target, link=file.path.endswith(".whl") if link is None else link)
            except MissingOutputError as error:
                missing = error
        if missing:
            raise missing

    def get(self, key: str, file: FarmFile, target: Path, *, link: bool = True) -> None:
        """Put a file of an output at a place of this machine; it has its SHA-256, or the output is forgotten.

        With `link` it is one that nobody changes.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._files.fetch_file(_blob(file.sha256), file.sha256, target, most=file.size)
            if found is not None and found != target:
                with disk_errors(target.parent, unchanged="Finished jobs are kept in the store."):
                    place_verified(found, target, file.sha256, link=link)
            elif found is not None and not link:
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
            with self._files.lock() if self._files.local else nullcontext():
                self.put_text(name, name)
                self._remove_old_tokens(name)
                self.remove_text(name)
        except EnvironmentProblem as error:
            reason = error.message.rpartition(": ")[2].rstrip(".")
            raise EnvironmentProblem(
                f"The store {self.shown} cannot be written: {reason}.", "Give another folder or bucket with --store."
            ) from error

    def _remove_old_tokens(self, newest: str) -> None:
        """By the clock of the store: that of this machine may be a day ahead of it."""
        with suppress(NetworkError):
            times = {token.path: token.stored for token in self._files.files("tokens") if token.stored is not None}
            for path, stored in times.items():
                if newest in times and stored < times[newest] - _DAY:
                    self._files.remove(path)

    def put_text(self, name: str, text: str) -> None:
        self._files.put_bytes(text.encode("utf-8", "replace"), name)

    def read_text(self, name: str) -> str | None:
        content = self._files.read(name)
        return None if content is None else content.decode("utf-8", "replace")

    def remove_text(self, name: str) -> None:
        self._files.remove(name)


def open_farm_store(where: str, secret: str = "") -> FarmStore:
    """The store of `--store`."""
    return FarmStore(open_store(where, _OPTION), secret)


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
