"""What is said of a new wheel that may surprise: a hook that needs a newer glibc than the tag says, a larger size."""

from __future__ import annotations

from pathlib import Path

from torchtailor.core.format import human_bytes
from torchtailor.tailoring.result import TailorResult
from torchtailor.trees.wheels.name import WheelName
from torchtailor.workload.hook import hook_glibc

_NOTICEABLE = 64 << 10  # bytes; the manifest takes some too


def newer_hook(wheel: Path, hook: Path) -> tuple[str, ...]:
    """Where the hook of a wheel needs a newer glibc than its tag promises."""
    needed, promised = hook_glibc(hook), WheelName.parse(wheel).oldest_glibc
    if promised is None or needed <= promised:
        return ()
    needs, tag = (".".join(map(str, version)) for version in (needed, promised))
    told = f"The hook in {wheel.name} was compiled on this machine and needs glibc {needs}, but the tag promises {tag}."
    build = "`pip install ziglang && python tools/build_hook.py` in the sources"
    return (f"{told} Cut it with a released wheel of torchtailor, or run {build} first.",)


def larger_wheel(result: TailorResult) -> tuple[str, ...]:
    """Where a new wheel is larger than the stock one, more than the indexes that were asked for make it."""
    added = sum(index.size for index in result.module_indexes)
    if not result.output or result.size_after - result.size_before < _NOTICEABLE + added:
        return ()
    sizes = f"{human_bytes(result.size_before)} -> {human_bytes(result.size_after)}"
    installed = human_bytes(max(sum(one.saved for one in result.changed), 0))
    told = f"{result.output.name} is larger than the stock wheel ({sizes}), because it compresses less well"
    return (f"{told}; installed, its libraries take {installed} less.",)
