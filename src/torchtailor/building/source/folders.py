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

import hashlib
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.disk import WORK_VARIABLE, expand_home, state_folder, work_folder
from torchtailor.core.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of builds from source."""

    work: Path
    logs: Path
    builds: Path | None = None  # where they are not in `work`: two processes never build in one folder

    @classmethod
    def default(cls, work: Path | None = None) -> Folders:
        return cls(expand_home(work).absolute() if work else work_folder(), state_folder() / "logs")

    @property
    def ccache(self) -> Path:
        return self.work / "ccache"

    def tree(self, key: str) -> Path:
        return self.work / "trees" / key

    def build(self, name: str) -> Path:
        return (self.builds or self.work / "builds") / name

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
