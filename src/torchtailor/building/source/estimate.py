"""The progress of a build and its remaining time: weights of kinds of files, scaled by earlier builds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from torchtailor.building.ledger.ledger import Attempt, Result
from torchtailor.building.source.ninja import NinjaStatus, Timing
from torchtailor.building.source.tables import FileKind
from torchtailor.building.source.watch import Sample
from torchtailor.catalog import SOURCE
from torchtailor.core.progress import CompileProgress

# Of the configuration that the ledger keeps.
SPEED_KEY = "seconds_per_weight"
COMPILER_KEY = "compiler"
_ENOUGH = 20  # files, before this build's own times count


def learned_speed(attempts: Iterable[Attempt], compiler: str) -> float:
    """Seconds on this machine for a second of the table, from the last build with this compiler that measured it."""
    speed = 1.0
    for attempt in attempts:
        value = attempt.configuration.get(SPEED_KEY)
        measured = attempt.method == SOURCE and attempt.result is not Result.RUNNING
        if measured and attempt.configuration.get(COMPILER_KEY) == compiler and isinstance(value, int | float):
            speed = float(value) if value > 0 else speed
    return speed


def measured_speed(kinds: Mapping[str, FileKind], made: Mapping[str, Timing]) -> float | None:
    """The same, of the files that were compiled; None where they are too few."""
    pairs = [(timing.seconds, kinds[name].seconds) for name, timing in made.items() if name in kinds]
    weight = sum(table for _, table in pairs)
    return sum(taken for taken, _ in pairs) / weight if len(pairs) >= _ENOUGH and weight else None


class Estimate:
    """Follows one run of ninja."""

    def __init__(
        self, kinds: Mapping[str, FileKind], made: Iterable[str], jobs: int, speed: float, *, whole: bool = True
    ) -> None:
        done = set(made)
        self._kinds = kinds
        self._missing = {name: kind.seconds for name, kind in kinds.items() if name not in done}
        # Ninja may compile them again: a header has changed, or a flag.
        self._made = {name: kind.seconds for name, kind in kinds.items() if name in done}
        self._finished = 0.0
        self._jobs, self._speed, self._whole = jobs, speed, whole
        self._started = time.monotonic()
        self._last: NinjaStatus | None = None
        self._sample = Sample(0, ())
        self.peak = 0

    def take(self, status: NinjaStatus) -> None:
        # First ninja updates build.ninja (code generators, CMake) and counts only those steps.
        if self._last or status.output in self._kinds:
            self._last = status
        self._finished += self._missing.pop(status.output, 0.0) or self._made.pop(status.output, 0.0)

    def look(self, sample: Sample) -> None:
        self._sample = sample
        self.peak = max(self.peak, sample.memory)

    @property
    def progress(self) -> CompileProgress:
        done, total = (self._last.done, self._last.total) if self._last else (0, len(self._missing))
        earlier = max(0, len(self._kinds) - total) if self._whole else 0  # ninja counts only this run's files
        return CompileProgress(
            earlier + done, earlier + total, self._sample.memory, self._sample.files[:3], self._remaining()
        )

    def _remaining(self) -> float | None:
        if not self._whole:
            return None  # only ninja knows the files of a target
        left = sum(self._missing.values())
        planned = self._speed / self._jobs  # wall-clock seconds for a second of weight
        if self._last:
            again = self._last.total - self._last.done - len(self._missing)
            if again > 0 and self._made:  # only ninja knows which
                left += min(again, len(self._made)) * sum(self._made.values()) / len(self._made)
            if self._last.done >= _ENOUGH and self._finished:
                planned = (time.monotonic() - self._started) / self._finished
        return left * planned
