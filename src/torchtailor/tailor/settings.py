"""What the user asked for, in one value that every kind of input takes."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.targets import Targets
from torchtailor.surgery.library import Recompress
from torchtailor.tailor.manifest import Choices
from torchtailor.wheels.deflate import Effort

_LITTLE = 64 << 20


@dataclass(frozen=True)
class Settings:
    """For which GPUs, how, and on how many cores; `strip` of None means: as is usual for the kind of input."""

    targets: Targets
    policy: Policy
    strip: bool | None = None
    nvidia: bool = False
    recompress: Recompress | None = None
    dry_run: bool = False
    keep_removed: bool = False
    processes: int = 2

    def strips(self, *, usually: bool) -> bool:
        return usually if self.strip is None else self.strip

    def choices(self, *, usually_strip: bool) -> Choices:
        return Choices(self.targets, self.strips(usually=usually_strip), self.nvidia, self.recompress)

    def effort(self, size: int) -> Effort:
        """How hard to pack so many bytes of a wheel: who waits for recompression wants a small wheel too, and where
        there is little to pack the difference in time is not felt."""
        return Effort.SMALL if self.recompress or size < _LITTLE else Effort.FAST
