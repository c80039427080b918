"""A store that only remembers what would be written: a dry run is a real run on it, with the real result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from torchtailor.fetch.locations import local_path
from torchtailor.publish.store import Store, StoredFile, open_store


class DryStore:
    """Reads from a store, and keeps what is written or removed to itself; without a store it begins empty."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._written: dict[str, bytes | None] = {}  # None: a file that was not read
        self._removed: set[str] = set()
        self.local = store.local if store else True

    @classmethod
    def of(cls, to: str) -> DryStore:
        """Of what `--to` names; a folder that does not exist yet is not created."""
        if urlsplit(to).scheme in ("", "file") and not (local_path(to) or Path(to)).exists():
            return cls(None)
        return cls(open_store(to))

    def read(self, path: str) -> bytes | None:
        if path in self._written:
            return self._written[path]
        return self._store.read(path) if self._store and path not in self._removed else None

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        if path in self._written:
            return True
        return bool(self._store and path not in self._removed and self._store.has(path, size, sha256, listed=listed))

    def put_file(self, source: Path, path: str, sha256: str) -> None:
        self._written[path] = None

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        self._written[path] = content

    def fetch_file(self, path: str, folder: Path) -> Path | None:
        return self._store.fetch_file(path, folder) if self._store and path not in self._removed else None

    def remove(self, path: str) -> None:
        self._written.pop(path, None)
        self._removed.add(path)

    def files(self, folder: str) -> Iterator[StoredFile]:
        for file in self._store.files(folder) if self._store else ():
            if file.path not in self._removed:
                yield file

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield
