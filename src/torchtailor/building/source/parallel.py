"""How many files are compiled in parallel: as many as fit into memory, heavy ones in a ninja pool of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchtailor.advise.host.capacity import Capacity
from torchtailor.building.source.tables import FileKind

# Left for the rest of the machine, and for files that need more than their weight.
_SPARE = 0.10
_SPARE_MOST = 4_000_000_000


@dataclass(frozen=True, slots=True)
class CompileJobs:
    """Compilers that run in parallel, and how many of them may compile heavy files."""

    total: int
    heavy: int
    why: str

    def fewer(self, factor: float = 0.5) -> CompileJobs | None:
        """The jobs of the next attempt after memory ran out; None where it was one already."""
        if self.total == 1:
            return None
        total = max(1, min(self.total - 1, int(self.total * factor)))
        return replace(self, total=total, heavy=max(1, min(total, int(self.heavy * factor))), why="memory ran out")


def choose_jobs(capacity: Capacity, kinds: Iterable[FileKind], *, asked: int | None = None) -> CompileJobs:
    """The jobs for the files of a build; `asked` is the user's number: memory then limits only the heavy files."""
    counted = Counter(kinds)
    budget = capacity.memory - min(_SPARE_MOST, int(capacity.memory * _SPARE))
    light = _typical([kind for kind in counted.elements() if not kind.heavy])
    heavy = max((kind.memory for kind in counted if kind.heavy), default=light)
    total = asked or max(1, min(capacity.cores, budget // light))
    pool = 1
    while pool < total and (pool + 1) * heavy + (total - pool - 1) * light <= budget:
        pool += 1
    free, one, most = (size / 1e9 for size in (capacity.memory, light, heavy))
    why = f"{capacity.cores} cores, {free:.1f} GB free; {one:.1f} GB a file, {most:.1f} GB a heavy one"
    return CompileJobs(total, pool, "as given with --jobs" if asked else why)


def _typical(kinds: list[FileKind]) -> int:
    """The memory that nine of ten files stay below."""
    weights = sorted(kind.memory for kind in kinds)
    return weights[min(len(weights) - 1, len(weights) * 9 // 10)] if weights else 1_000_000_000
