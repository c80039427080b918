"""What a tailoring of a wheel, a folder or an environment gave, library by library."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from torchtailor.surgery.result import LibraryResult, Status

COPIED = "Nothing was cut: copied as it is."


class Fate(Enum):
    """What became of one library."""

    CUT = "cut"
    STRIPPED = "stripped"
    UNCHANGED = "unchanged"
    LEFT_TO_CONSENT = "left-to-consent"  # NVIDIA's: `--nvidia` would cut it
    NOTHING_FOR_TARGET = "nothing-for-target"
    SKIPPED = "skipped"  # could not be read; `reason` says why

    @property
    def changed(self) -> bool:
        return self in (Fate.CUT, Fate.STRIPPED)


_FATES = {
    Status.TAILORED: Fate.CUT,
    Status.STRIPPED: Fate.STRIPPED,
    Status.UNCHANGED: Fate.UNCHANGED,
    Status.NO_GPU_CODE: Fate.UNCHANGED,
    Status.NOTHING_FOR_TARGET: Fate.NOTHING_FOR_TARGET,
}


@dataclass(frozen=True, slots=True)
class LibraryOutcome:
    """One library; `result` is what the cut gave, or would give where it was left to the user's consent."""

    path: str
    fate: Fate
    size_before: int
    result: LibraryResult | None = None
    reason: str = ""

    @classmethod
    def of(cls, path: str, result: LibraryResult, *, consent_missing: bool = False) -> LibraryOutcome:
        fate = _FATES[result.status]
        if fate is Fate.CUT and not result.dropped and not result.recompressed:
            fate = Fate.STRIPPED  # it has GPU code, and all of it stays
        if consent_missing and fate.changed:
            fate = Fate.LEFT_TO_CONSENT
        return cls(path, fate, result.size_before, result)

    @classmethod
    def skipped(cls, path: str, size: int, reason: str) -> LibraryOutcome:
        return cls(path, Fate.SKIPPED, size, None, reason)

    @property
    def size_after(self) -> int:
        return self.result.size_after if self.result and self.fate.changed else self.size_before

    @property
    def could_save(self) -> int:
        """What cutting it would save, where it was left to the user's consent."""
        return self.result.saved if self.result and self.fate is Fate.LEFT_TO_CONSENT else 0

    @property
    def has_gpu_code(self) -> bool:
        return bool(self.result and self.result.gpu_before)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.result.warnings if self.result else ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One input: what it was, where the output is, and its libraries."""

    kind: str
    source: Path
    output: Path | None
    libraries: tuple[LibraryOutcome, ...]
    size_before: int  # of the wheel, folder or distribution
    size_after: int
    dry_run: bool = False
    sha256_before: str = ""
    sha256_after: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def changed(self) -> tuple[LibraryOutcome, ...]:
        return tuple(library for library in self.libraries if library.fate.changed)

    @property
    def could_save(self) -> int:
        return sum(library.could_save for library in self.libraries)

    @property
    def useless_for_target(self) -> bool:
        """Whether there is GPU code, and none of it runs on the target."""
        with_code = [library for library in self.libraries if library.has_gpu_code]
        return bool(with_code) and all(library.fate is Fate.NOTHING_FOR_TARGET for library in with_code)
