"""Where builds from source live.

WORK/trees/KEY/                 sources as they were fetched or unpacked, never built in
WORK/builds/VARIANT-KEY/src/    the copy that one build works in, with PyTorch's own build/ inside; for all Pythons
WORK/builds/VARIANT-KEY/state.json, lock
WORK/env/KEY/                   build environments
WORK/cuda/KEY/                  CUDA toolkits made of NVIDIA's wheels
WORK/ccache/                    what builds share
STATE/logs/NUMBER-VARIANT.log   one log an attempt
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from torchtailor.disk import WORK_VARIABLE, state_folder, work_folder
from torchtailor.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the source way."""

    work: Path
    logs: Path

    @classmethod
    def default(cls, work: Path | None = None) -> Folders:
        return cls(work.expanduser().absolute() if work else work_folder(), state_folder() / "logs")

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
                f"The folder {error.filename} cannot be made: {error.strerror}.",
                f"Name another with --work or {WORK_VARIABLE}.",
            ) from error


def key_of(*parts: str) -> str:
    """A short name for things made of these."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
