"""Which files of GPU code an output goes without: bitcode named for other GPUs, and loose cubins where that was asked.

A file is never changed, only left out. Bitcode is linked into other code and works on any newer GPU, so who picks one
by name may take an older one where there is none for the GPU itself: then the older ones stay too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchtailor.catalog.gpus import Capability
from torchtailor.gpucode.files import CodeFile, CodeFileKind
from torchtailor.surgery.options import TailorOptions


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that the output does not have."""

    path: str
    size: int
    code: str  # what it was for: sm_100, bitcode_75


def removed_files(files: Iterable[CodeFile], options: TailorOptions) -> tuple[RemovedFile, ...]:
    """The files to leave out; of files for several GPUs all stay where none is for a target."""
    left_out: list[CodeFile] = []
    families: dict[tuple[CodeFileKind, str], list[CodeFile]] = {}
    for file in files:
        if file.kind is CodeFileKind.BITCODE and file.target:
            families.setdefault((file.kind, file.family), []).append(file)
        elif file.kind is CodeFileKind.CUBIN and file.target and options.loose_cubins:
            families.setdefault((file.kind, ""), []).append(file)
    for (kind, _), alike in families.items():
        wanted = _bitcode(alike, options) if kind is CodeFileKind.BITCODE else _cubins(alike, options)
        if wanted:
            left_out += [file for file in alike if file.name not in wanted]
    rows = (RemovedFile(file.name, file.size, file.architectures[0].label) for file in left_out)
    return tuple(sorted(rows, key=lambda row: row.path))


def _cubins(files: Sequence[CodeFile], options: TailorOptions) -> set[str]:
    """The cubins that a target can run."""
    policy = options.policy
    return {file.name for file in files if file.target and any(policy.fits(gpu, file.target) for gpu in policy.devices)}


def _bitcode(files: Sequence[CodeFile], options: TailorOptions) -> set[str]:
    """For each target its own and those of lower minors; without one of its major, all older ones."""
    made_for = {file.name: file.target.capability for file in files if file.target}
    wanted: set[str] = set()
    for gpu in options.policy.devices:
        older = {name for name, capability in made_for.items() if capability <= gpu}
        own = {name for name in older if _same_major(made_for[name], gpu)}
        wanted |= own or older
    if options.targets.keep_ptx:  # for GPUs that do not exist yet
        newest = max(made_for.values())
        wanted |= {name for name, capability in made_for.items() if capability == newest}
    return wanted


def _same_major(one: Capability, other: Capability) -> bool:
    return one.major == other.major
