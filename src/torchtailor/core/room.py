"""The disk that something will take, and what is free of it: refused before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.disk import CACHE_VARIABLE, existing_parent
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.format import human_bytes

_MORE_ROOM = (
    f"Free some space (`torchtailor cache prune`), choose another -o or --store, or set {CACHE_VARIABLE} to a folder "
    "on another disk."
)


@dataclass(frozen=True)
class DiskNeed:
    """What is written to one file system, and what is free there."""

    place: Path
    size: int
    free: int

    @property
    def left(self) -> int:
        return self.free - self.size


def free_at(place: Path) -> int:
    """The bytes that are free where a path is, or will be."""
    return shutil.disk_usage(existing_parent(place)).free


def device_of(place: Path) -> int:
    """The file system where a path is, or will be."""
    return existing_parent(place).stat().st_dev


def disk_needs(sizes: Iterable[tuple[Path, int]]) -> tuple[DiskNeed, ...]:
    """What is written, by file system; the one with the least left comes first."""
    needs: dict[int, DiskNeed] = {}
    for place, size in sizes:
        device = device_of(place)
        before = needs.get(device) or DiskNeed(place, 0, free_at(place))
        needs[device] = DiskNeed(before.place, before.size + size, before.free)
    return tuple(sorted(needs.values(), key=lambda need: need.left))


def check_room(what: str, needs: Collection[DiskNeed], hint: str = _MORE_ROOM) -> None:
    """Refuse where a disk is too small: `This build needs about 20 GB of disk, and 4 GB are free for /tmp.`"""
    for need in needs:
        if need.left < 0:
            raise EnvironmentProblem(
                f"{what} needs about {human_bytes(need.size)} of disk, and {human_bytes(need.free)} are free for "
                f"{need.place}.",
                hint,
            )
