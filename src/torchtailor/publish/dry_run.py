"""A store that only remembers what would be written: a dry run is a real run on it, with the real result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchtailor.core.store import Store, StoredFile, open_store, store_folder


class DryStore:
    """Reads from a store, and keeps what is written or removed to itself; without a store it begins empty."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._written: dict[str, bytes | None] = {}  # None: a file that was not read
        self._removed: set[str] = set()
        self.local = store.local if store else True
        self.shown = store.shown if store else ""

    @classmethod
    def of(cls, to: str) -> DryStore:
        """Of what `--to` names; a folder that does not exist yet is not created."""
        folder = store_folder(to)
        return cls(None if folder and not folder.exists() else open_store(to, "--to"))

    def read(self, path: str) -> bytes | None:
        if path in self._written:
            return self._written[path]
        return self._store.read(path) if self._store and path not in self._removed else None

    def exists(self, path: str) -> bool:
        if path in self._written:
            return True
        return bool(self._store and path not in self._removed and self._store.exists(path))

    def has(self, path: str, size: int, sha256: str, *, listed: bool) -> bool:
        if path in self._written:
            return True
        return bool(self._store and path not in self._removed and self._store.has(path, size, sha256, listed=listed))

    def put_file(self, source: Path, path: str, sha256: str, *, link: bool = False) -> None:
        self._written[path] = None

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        self._written[path] = content

    def create(self, content: bytes, path: str, content_type: str = "") -> bool:
        if self.exists(path):
            return False
        self.put_bytes(content, path, content_type)
        return True

    def fetch_file(self, path: str, sha256: str, target: Path, *, most: int | None = None) -> Path | None:
        if self._store is None or path in self._removed:
            return None
        return self._store.fetch_file(path, sha256, target, most=most)

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
