"""The content-addressed cache: wheels by their hash, partial downloads, index pages, facts about wheels.

    blobs/ab/abcd.../torch-2.8.0-....whl   whole files, verified, read-only
    partial/KEY.part, KEY.json              partial downloads and the server's ETag for them
    pages/KEY, facts/KEY                    index pages and metadata, for the next run and for --offline
    made/KEY/...                            what was made from blobs, by inputs and options

A file is in `blobs` only after its hash was checked; everything is renamed into place, so a kill leaves no wrong file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import platformdirs

from torchtailor.errors import EnvironmentProblem

CACHE_VARIABLE = "TORCHTAILOR_CACHE"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Cache of torchtailor; safe to delete.\n"
_USED = ".used"
_CHUNK = 1 << 20


class EntryKind(Enum):
    """What an entry of the cache is."""

    WHEEL = "wheel"
    PARTIAL = "partial"
    MADE = "made"
    NOTES = "notes"  # index pages and facts about wheels


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the cache that can be listed and pruned."""

    kind: EntryKind
    name: str
    size: int
    used: float
    path: Path


def cache_dir() -> Path:
    """Where the cache is: $TORCHTAILOR_CACHE or the platform's cache directory."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("torchtailor", appauthor=False))


class Cache:
    """Everything that need not be fetched or computed twice."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_dir()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / "CACHEDIR.TAG").exists():
                write_atomic(self.root / "CACHEDIR.TAG", _TAG.encode())
        except OSError as error:
            raise EnvironmentProblem(
                f"The cache folder {self.root} cannot be used: {error.strerror}.",
                f"Set {CACHE_VARIABLE} to a folder you can write to.",
            ) from error

    # Whole files

    def find(self, sha256: str, filename: str) -> Path | None:
        """The file with this hash under this name, if it is cached."""
        folder = self._blob_folder(sha256)
        path = folder / filename
        if not path.is_file():
            others = [item for item in _files(folder) if item.name != _USED]
            if not others:
                return None
            link_or_copy(others[0], path)  # the same bytes under another name
        with suppress(OSError):
            (folder / _USED).touch()
        return path

    def adopt(self, part: Path, sha256: str, filename: str) -> Path:
        """Move a file whose hash was checked into the cache."""
        folder = self._blob_folder(sha256)
        folder.mkdir(parents=True, exist_ok=True)
        part.chmod(0o444)
        part.replace(folder / filename)
        (folder / _USED).touch()
        return folder / filename

    def _blob_folder(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256[:2] / sha256

    # Partial downloads

    def partial(self, key: str) -> Path:
        folder = self.root / "partial"
        folder.mkdir(exist_ok=True)
        return folder / f"{key}.part"

    # Small answers

    def read_note(self, kind: str, key: str) -> bytes | None:
        """A page or fact kept earlier."""
        try:
            return (self.root / kind / _hashed(key)).read_bytes()
        except OSError:
            return None

    def write_note(self, kind: str, key: str, content: bytes) -> None:
        folder = self.root / kind
        folder.mkdir(exist_ok=True)
        write_atomic(folder / _hashed(key), content)

    # Things made from wheels

    def made(self, key: str) -> Path:
        """The folder for what is made from these inputs and options."""
        return self.root / "made" / key[:2] / key

    # Listing and pruning

    def entries(self) -> Iterator[Entry]:
        for folder in sorted((self.root / "blobs").glob("*/*")):
            used = _mtime(folder / _USED)
            for path in _files(folder):
                if path.name != _USED:
                    yield Entry(EntryKind.WHEEL, path.name, path.stat().st_size, used, path)
        for path in sorted((self.root / "partial").glob("*.part")):
            yield Entry(EntryKind.PARTIAL, path.name, path.stat().st_size, _mtime(path), path)
        for folder in sorted((self.root / "made").glob("*/*")):
            files = [path for path in folder.rglob("*") if path.is_file()]
            name = next((path.name for path in files if path.suffix == ".whl"), folder.name)
            size = sum(path.stat().st_size for path in files)
            yield Entry(EntryKind.MADE, name, size, max(map(_mtime, files), default=_mtime(folder)), folder)
        notes = [path for kind in ("pages", "facts") for path in _files(self.root / kind)]
        if notes:
            size = sum(path.stat().st_size for path in notes)
            yield Entry(EntryKind.NOTES, "index pages and metadata", size, max(map(_mtime, notes)), self.root / "pages")

    def prune(self, *, older_than: float | None, dry_run: bool = False) -> tuple[Entry, ...]:
        """Remove what was last used more than so many seconds ago (None: everything); what went is returned."""
        limit = time.time() - older_than if older_than is not None else float("inf")
        gone = tuple(entry for entry in self.entries() if entry.used < limit)
        if not dry_run:
            for entry in gone:
                self._remove(entry)
        return gone

    def _remove(self, entry: Entry) -> None:
        if entry.kind is EntryKind.NOTES:
            for kind in ("pages", "facts"):
                shutil.rmtree(self.root / kind, ignore_errors=True)
        elif entry.kind is EntryKind.MADE:
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.kind is EntryKind.PARTIAL:
            entry.path.unlink(missing_ok=True)
            entry.path.with_suffix(".json").unlink(missing_ok=True)
            entry.path.with_suffix(".lock").unlink(missing_ok=True)
        else:
            entry.path.unlink(missing_ok=True)
            if not [item for item in _files(entry.path.parent) if item.name != _USED]:
                shutil.rmtree(entry.path.parent, ignore_errors=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside and rename, so that a reader sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.new")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes at a second place: a hard link where the disk allows it, else a copy; atomic."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    beside.unlink(missing_ok=True)
    try:
        try:
            beside.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, beside)
        beside.replace(target)
        beside.unlink(missing_ok=True)  # rename between two links of one file does nothing
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
