"""The folders of builds from source.

WORK/trees/KEY/                 sources as fetched or unpacked; no build runs in them
WORK/builds/VARIANT-KEY/src/    the copy for one build, with PyTorch's own build/ inside; shared by all Pythons
WORK/builds/VARIANT-KEY/state.json, lock
WORK/env/KEY/                   build environments
WORK/cuda/KEY/                  CUDA toolkits made of NVIDIA's wheels
WORK/ccache/                    objects that builds share
STATE/logs/NUMBER-VARIANT.log   one log per attempt
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchtailor.errors import EnvironmentProblem
from torchtailor.fetch.cache import cache_dir
from torchtailor.ledger.ledger import state_dir

WORK_VARIABLE = "TORCHTAILOR_WORK"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of builds from source."""

    work: Path
    logs: Path

    @classmethod
    def default(cls, work: Path | None = None) -> Folders:
        chosen = work or Path(os.environ.get(WORK_VARIABLE) or cache_dir() / "source")
        return cls(chosen.expanduser().absolute(), state_dir() / "logs")

    @property
    def ccache(self) -> Path:
        return self.work / "ccache"

    def tree(self, key: str) -> Path:
        return self.work / "trees" / key

    def build(self, name: str) -> Path:
        return self.work / "builds" / name

    def environment(self, key: str) -> Path:
        return self.work / "env" / key

    def cuda(self, key: str) -> Path:
        return self.work / "cuda" / key

    def make(self) -> None:
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"The folder {error.filename} cannot be created: {error.strerror}.",
                f"Give another with --work or {WORK_VARIABLE}.",
            ) from error


def key_of(*parts: str) -> str:
    """A short hash of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            file.seek(0)
            raise EnvironmentProblem(
                f"{what} is being built by another torchtailor (process {file.read().strip() or 'unknown'}).",
                "Wait for it, or build with another --work folder.",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
