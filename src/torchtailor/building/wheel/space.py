"""How much disk a build from official wheels takes where it is asked for: in the cache, the store and -o.

What is on one file system is hard-linked: a wheel that is fetched into the cache is in the store and in -o for nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from torchtailor.building.planned_jobs import DiskNeed
from torchtailor.building.wheel.plan import WheelPlan
from torchtailor.core.disk import CACHE_VARIABLE, cache_folder, existing_parent
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.format import human_bytes
from torchtailor.core.store import store_folder

_SPARE = 500_000_000


def disk_needs(plan: WheelPlan, to_run: Collection[str], store: str, *, here: bool) -> tuple[DiskNeed, ...]:
    """What the jobs `to_run` and the wheelhouses take; `here`: the jobs run on this machine, and use its cache."""
    wheels = {wheel.file.key: wheel for variant in plan.plans for wheel in variant.wheels}
    fetched = [wheel for key, wheel in wheels.items() if key in to_run]
    cuts = bool(to_run) and plan.cost.made > 0
    made, scratch = (plan.cost.made, plan.cost.scratch) if cuts else (0, 0)
    cache, folder = cache_folder(), store_folder(store)
    sizes: dict[Path, int] = {}
    if here and to_run:
        sizes[cache] = sum(wheel.download for wheel in fetched) + made + scratch + _SPARE
    if folder and to_run and not (here and _device(folder) == _device(cache)):
        sizes[folder] = sum(wheel.size for wheel in fetched) + made + _SPARE
    if folder is None or _device(folder) != _device(plan.out):
        sizes[plan.out] = sum(variant.output_size for variant in plan.plans)
    joined: dict[int, DiskNeed] = {}
    for place, size in sizes.items():
        device = _device(place)
        before = joined.get(device) or DiskNeed(place, 0, shutil.disk_usage(existing_parent(place)).free)
        joined[device] = DiskNeed(before.place, before.size + size, before.free)
    return tuple(joined.values())


def check_space(needs: Collection[DiskNeed]) -> None:
    """Refuse before anything is fetched where a disk is too small."""
    for need in needs:
        if need.left < 0:
            raise EnvironmentProblem(
                f"This build needs about {human_bytes(need.size)} of disk, and {human_bytes(need.free)} are free for "
                f"{need.place}.",
                f"Free some space (`torchtailor cache prune`), choose another -o or --store, or set {CACHE_VARIABLE}.",
            )


def _device(path: Path) -> int:
    return existing_parent(path).stat().st_dev
