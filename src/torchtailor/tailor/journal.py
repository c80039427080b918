"""What was changed in an environment, written down before it happens, so that any interrupted run can be set right.

Everything lies in `.torchtailor` inside site-packages: `journal.jsonl` (one line per replaced file, on disk before the
file is replaced), `staging` (files in the making), `removed` (what is needed to restore) and `lock`. A line says what
a file was before and is afterwards; which of the two it is now is seen from the file itself. So there is no moment
in which the journal and the environment can disagree.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.disk import hash_file, locked, remove_locked, sync_folder, write_atomically
from torchtailor.errors import BadInputError

FOLDER = ".torchtailor"
_WORKERS_DIE = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class FileState:
    """What a file is: its bytes by hash and size."""

    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path, *, sizes: Iterable[int]) -> FileState | None:
        """The state of a file if it has one of these sizes; None where it is something else, or gone."""
        try:
            size = path.stat().st_size
            return cls(hash_file(path), size) if size in sizes else None
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Change:
    """One replaced file of an environment; paths are relative to site-packages."""

    path: str
    distributions: tuple[str, ...]  # names of the .dist-info folders whose RECORD lists it
    before: FileState
    after: FileState
    removed: str  # the file in `removed` that turns after into before; empty where nothing was kept
    choices: dict[str, Any]  # target and policy, as in the manifest
    library: dict[str, Any]  # the library's row of the manifest

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(self.choices["target"]["gpus"])


class Journal:
    """The state folder of one site-packages, held by one run at a time; made by `Journal.held`."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.folder = site / FOLDER
        self.staging = self.folder / "staging"
        self.removed = self.folder / "removed"
        self.empty = False
        self._path = self.folder / "journal.jsonl"

    @classmethod
    @contextmanager
    def held(cls, site: Path) -> Iterator[Journal]:
        """Take the lock; a second run on the same environment is refused. The kernel frees it when we die."""
        journal = cls(site)
        # Workers of a run that was killed hold the lock until they are dead too, which takes them a moment.
        with locked(journal.folder / "lock", str(site), timeout=_WORKERS_DIE):
            journal.clear_staging()
            journal.removed.mkdir(exist_ok=True)
            try:
                yield journal
            finally:
                if journal.empty:
                    remove_locked(journal.folder)
                else:
                    shutil.rmtree(journal.staging, ignore_errors=True)

    def clear_staging(self) -> None:
        """Forget files in the making that an interrupted run left."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir()

    def add(self, change: Change) -> None:
        """Write a change down; it is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(_encode(change))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.folder)

    def changes(self) -> list[Change]:
        """All changes in their order. A last line that was cut off by a kill was never acted upon."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        lines = data.split(b"\n")[:-1]
        try:
            return [msgspec.convert(json.loads(line), Change) for line in lines]
        except (ValueError, msgspec.ValidationError) as error:
            raise BadInputError(
                f"{self._path} is damaged", "Reinstall the packages that were cut, then remove that folder."
            ) from error

    def rewrite(self, changes: Iterable[Change]) -> None:
        """Keep only these changes, and of the removed bytes only what they need."""
        kept = list(changes)
        write_atomically(self._path, b"".join(map(_encode, kept)), durable=True, staging=self.staging)
        needed = {change.removed for change in kept}
        for path in self.removed.iterdir():
            if path.name not in needed:
                path.unlink()

    def forget(self) -> None:
        """Nothing of ours is left in the environment: the state folder goes when the lock is given back."""
        self.empty = True


def _encode(change: Change) -> bytes:
    return json.dumps(asdict(change), sort_keys=True, separators=(",", ":")).encode() + b"\n"
