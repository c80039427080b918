"""Cuts the files of a build into shards of about the same weight, the heaviest files first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from torchtailor.building.source.jobs import CompilePart
from torchtailor.building.source.tables import FileKind

# Targets of CMake whose files include Python's headers, and those that only builds with CUDA have. All others compile
# the same text with CUDA and without: "libATen_cpu.so is invariant to the setting of USE_CUDA", says PyTorch's CMake.
_PYTHON = ("torch_python", "functorch")
_TOOLKIT = ("torch_cuda", "c10_cuda", "caffe2_nvrtc", "torch_nvshmem")
_INCLUDES = {
    CompilePart.HOST: (CompilePart.HOST, CompilePart.TOOLKIT, CompilePart.PYTHON),
    CompilePart.TOOLKIT: (CompilePart.TOOLKIT, CompilePart.PYTHON),
}


def part_of(output: str) -> CompilePart:
    """Which part of a build an object belongs to."""
    if output.endswith(".cu.o"):
        return CompilePart.DEVICE
    if any(name in output for name in _PYTHON):
        return CompilePart.PYTHON
    return CompilePart.TOOLKIT if any(f"{name}.dir/" in output for name in _TOOLKIT) else CompilePart.HOST


def compiled_files(kinds: Mapping[str, FileKind]) -> list[tuple[str, float]]:
    """The objects of a build with their weights, in a fixed order."""
    return sorted((name, kind.seconds) for name, kind in kinds.items() if name.endswith(".o"))


def of_part(files: Iterable[tuple[str, float]], part: CompilePart) -> list[tuple[str, float]]:
    """The files that the shards of a part compile."""
    wanted = _INCLUDES.get(part, (part,))
    return [(name, seconds) for name, seconds in files if part_of(name) in wanted]


def shards(files: Iterable[tuple[str, float]], count: int) -> list[list[tuple[str, float]]]:
    """So many lists: the heaviest file goes to the lightest list; the same files give the same lists everywhere."""
    loads = [(0.0, number) for number in range(count)]
    found: list[list[tuple[str, float]]] = [[] for _ in range(count)]
    for name, seconds in sorted(files, key=lambda file: (-file[1], file[0])):
        load, number = heapq.heappop(loads)
        found[number].append((name, seconds))
        heapq.heappush(loads, (load + seconds, number))
    return found
