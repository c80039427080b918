"""How much disk a build from official wheels takes where it is asked for: in the cache, the store and -o.

What is on one file system is hard-linked: a wheel that is fetched into the cache is in the store and in -o for nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from torchtailor.building.wheel.plan import SPARE_DISK, WheelPlan
from torchtailor.core.disk import cache_folder
from torchtailor.core.room import DiskNeed, device_of, disk_needs
from torchtailor.core.store import store_folder


def needs_on(plan: WheelPlan, to_run: Collection[str], store: str, *, here: bool) -> tuple[DiskNeed, ...]:
    """What the jobs `to_run` and the wheelhouses take; `here`: the jobs run on this machine, and use its cache."""
    wheels = {wheel.file.key: wheel for variant in plan.plans for wheel in variant.wheels}
    fetched = [wheel for key, wheel in wheels.items() if key in to_run]
    cuts = bool(to_run) and plan.cost.made > 0
    made, scratch = (plan.cost.made, plan.cost.scratch) if cuts else (0, 0)
    cache, folder = cache_folder(), store_folder(store)
    sizes: list[tuple[Path, int]] = []
    if here and to_run:
        sizes.append((cache, sum(wheel.download for wheel in fetched) + made + scratch + SPARE_DISK))
    if folder and to_run and not (here and device_of(folder) == device_of(cache)):
        sizes.append((folder, sum(wheel.size for wheel in fetched) + made + SPARE_DISK))
    if folder is None or device_of(folder) != device_of(plan.out):
        sizes.append((plan.out, sum(variant.output_size for variant in plan.plans)))
    return disk_needs(sizes)
