"""The content-addressed cache: wheels by their hash, partial downloads, index pages, facts about wheels.

    blobs/ab/abcd.../torch-2.8.0-....whl   whole files, verified, read-only
    partial/KEY.part, KEY.json              partial downloads and the server's ETag for them
    pages/KEY, facts/KEY                    index pages and metadata, for the next run and for --offline
    made/KEY/...                            what was made from blobs, by inputs and options
    images/KEY, hostcode/KEY                GPU code that `surgery` recompressed, host code that `hostcode` read
    farm/                                   the store of a farm, where none is given

A file is in `blobs` only after its hash was checked; everything is renamed into place, so a kill leaves no wrong file.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

import msgspec

from torchtailor.core.disk import (
    CACHE_VARIABLE,
    DamagedFileError,
    cache_folder,
    link_or_copy,
    locked,
    remove_abandoned,
    staging_folder,
    write_atomically,
)
from torchtailor.core.documents import Bytes
from torchtailor.core.errors import BadInputError, EnvironmentProblem
from torchtailor.core.store import FolderStore
from torchtailor.core.trust import Limit, is_file_name, is_sha256, read_limited

_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Cache of torchtailor; safe to delete.\n"
_USED = ".used"


class EntryKind(Enum):
    """What an entry of the cache is."""

    WHEEL = "wheel"
    PARTIAL = "partial"
    MADE = "made"
    NOTES = "notes"
    IMAGES = "images"
    HOST_CODE = "host-code"
    FARM = "farm"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the cache that can be listed and pruned; small files of one kind are one thing together."""

    kind: EntryKind
    name: str
    size: int
    used: float
    path: Path
    files: tuple[Path, ...]  # files and folders that go when it is pruned

    @property
    def last_used(self) -> datetime:
        """A time of this machine, with its zone."""
        return datetime.fromtimestamp(self.used).astimezone().replace(microsecond=0)


class EntryDocument(msgspec.Struct):
    """One thing in the cache."""

    kind: EntryKind
    name: str
    size: Bytes
    last_used: datetime = msgspec.field(name="used")
    path: Path


class CacheListing(msgspec.Struct):
    """What the cache holds."""

    folder: Path
    entries: list[EntryDocument]


class CachePruned(msgspec.Struct):
    """What was removed from the cache, or in a dry run would be."""

    removed: list[str]
    bytes: int
    dry_run: bool


# What is kept in many small files: its name in a list, and its folders.
_SMALL = {
    EntryKind.NOTES: ("index pages and metadata", ("pages", "facts")),
    EntryKind.IMAGES: ("recompressed GPU code", ("images",)),
    EntryKind.HOST_CODE: ("instruction sets of libraries", ("hostcode",)),
}


class Cache:
    """Everything that need not be fetched or computed twice."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_folder()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / "CACHEDIR.TAG").exists():
                write_atomically(self.root / "CACHEDIR.TAG", _TAG.encode())
        except OSError as error:
            raise EnvironmentProblem(
                f"The cache folder {self.root} cannot be used: {error.strerror}.",
                f"Set {CACHE_VARIABLE} to a folder you can write to.",
            ) from error
        self._files = FolderStore(self.root, CACHE_VARIABLE)

    # Whole files

    def find(self, sha256: str, filename: str) -> Path | None:
        """The file with this hash under this name, if it is cached; one that is damaged is removed."""
        path = self.locate(sha256, filename)
        if path is None:
            return None
        try:
            return self._files.fetch_file(path.relative_to(self.root).as_posix(), sha256, path)
        except DamagedFileError:
            self.discard(path)
            return None

    def locate(self, sha256: str, filename: str) -> Path | None:
        """The same without reading it: for what is planned, or checked where it is used."""
        if not is_sha256(sha256) or not is_file_name(filename):
            return None
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

    def discard(self, path: Path) -> bool:
        """Remove a damaged wheel, under all its names; False where it is not one of ours."""
        if not any(path.is_relative_to(self.root / kind) for kind in ("blobs", "made")):
            return False
        with self._changing_made():
            shutil.rmtree(path.parent, ignore_errors=True)
        return True

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
            return read_limited(self.root / kind / _hashed(key), Limit.NOTE)
        except (OSError, BadInputError):
            return None

    def write_note(self, kind: str, key: str, content: bytes) -> None:
        folder = self.root / kind
        with suppress(OSError):  # a full disk: it is only asked for again, and what matters will say so
            folder.mkdir(exist_ok=True)
            write_atomically(folder / _hashed(key), content, mode=0o600)  # the address may hold a password

    def drop_note(self, kind: str, key: str) -> None:
        """Forget a page or fact that is wrong."""
        (self.root / kind / _hashed(key)).unlink(missing_ok=True)

    # Things made from wheels

    def made(self, key: str) -> Path:
        """The folder for what is made from these inputs and options."""
        return self.root / "made" / key[:2] / key

    def put_made(self, key: str, folder: Path, complete: Callable[[Path], bool]) -> Path:
        """Move a finished folder to the place of its key; where another process was quicker, its result stays.

        A folder that is not `complete` was damaged, and is replaced.
        """
        place = self.made(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        with self._changing_made():
            if not complete(place):
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)
        return place

    def _changing_made(self) -> AbstractContextManager[None]:
        return locked(self.root / "made.lock", f"The cache {self.root}")

    def staging(self) -> AbstractContextManager[Path]:
        """A folder for what is being made."""
        return staging_folder(self.root)

    # Listing and pruning

    def entries(self, *, before: float = math.inf) -> Iterator[Entry]:
        """All that is here and was last used before a time."""
        for folder in sorted((self.root / "blobs").glob("*/*")):
            used = _mtime(folder / _USED)
            for path in _files(folder):
                if path.name != _USED and used < before:
                    yield Entry(EntryKind.WHEEL, path.name, _size(path), used, path, (path,))
        for path in sorted((self.root / "partial").glob("*.part")):
            if _mtime(path) < before:
                files = (path, path.with_suffix(".json"), path.with_suffix(".lock"))
                yield Entry(EntryKind.PARTIAL, path.name, _size(path), _mtime(path), path, files)
        for folder in sorted((self.root / "made").glob("*/*")):
            inside = [path for path in folder.rglob("*") if path.is_file()]
            name = next((path.name for path in inside if path.suffix == ".whl"), folder.name)
            used = max(map(_mtime, inside), default=_mtime(folder))
            if used < before:
                yield Entry(EntryKind.MADE, name, sum(map(_size, inside)), used, folder, (folder,))
        for kind, (name, folders) in _SMALL.items():
            places = [self.root / folder for folder in folders]
            found = [path for place in places for path in place.rglob("*") if path.is_file() and _mtime(path) < before]
            if found:
                used = max(map(_mtime, found))
                yield Entry(kind, name, sum(map(_size, found)), used, places[0], tuple(found))

    def prune(self, *, older_than: float | None, dry_run: bool = False) -> tuple[Entry, ...]:
        """Remove what was last used more than so many seconds ago (None: everything); what went is returned."""
        gone = tuple(self.entries(before=time.time() - older_than if older_than is not None else math.inf))
        if not dry_run:
            remove_abandoned(self.root)
            with self._changing_made():
                for entry in gone:
                    self._remove(entry)
        return gone

    def _remove(self, entry: Entry) -> None:
        for path in entry.files:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if entry.kind is EntryKind.WHEEL and not [path for path in _files(entry.path.parent) if path.name != _USED]:
            shutil.rmtree(entry.path.parent, ignore_errors=True)


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process has just removed it
        return 0


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
