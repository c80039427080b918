"""What the user chose for a cut, in one value that every kind of input takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtailor.artifact.drops import DroppedFile, Drops, ReadCode, default_rules
from torchtailor.cgroups import available_cores
from torchtailor.disk import cache_folder
from torchtailor.errors import ImpossibleError, UsageError
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.targets import Targets
from torchtailor.wheels.name import HOST
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.pack import PACK_VARIABLE

UNOPENED = "unopened"  # the rule of files that the workload never opened
_DRIVER = re.compile(r"\d+(\.\d+)*")
_ZSTD_DRIVER = (550, 54)  # the driver of CUDA 12.4, the first that reads zstd entries


@dataclass(frozen=True, slots=True)
class FilesLeftOut:
    """Files that an output goes without, and those that it would go without with --nvidia; by path."""

    files: Mapping[str, DroppedFile]
    refused: Mapping[str, DroppedFile]

    def others(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The files that no rule names."""
        return {path: size for path, size in sizes.items() if path not in self.files and path not in self.refused}


@dataclass(frozen=True)
class TailorOptions:
    """Which code stays (`policy`), what else is done to a library, and how the work is done."""

    policy: Policy
    strip: bool | None = None  # remove symbol tables; None: of what GPU code is cut from
    relr: bool = False  # store relative relocations as glibc 2.36 and newer can read them
    nvidia: bool = False  # cut NVIDIA's proprietary libraries too
    recompress: bool = False  # store LZ4 and raw images as zstd
    level: int = 19  # of zstd
    driver: str | None = None  # the oldest driver the output must run on, such as 550.54
    drop: tuple[str, ...] = ()  # names of rules for files that are left out, besides those that always count
    workload: TracedWorkload | None = None  # what stays in place of what the targets can run; the rest goes to packs
    packs: Path | None = None  # the folder for packs; None means beside the libraries
    drop_unopened: bool = False  # leave out files that the workload never opened
    no_pack: bool = False  # make none: what the workload does not use is gone
    split: bool = False  # all code that a hook can hand out goes to packs, one for the targets; see tailoring/split.py
    keep_removed: bool = False  # in an environment: keep what is cut out, so that it can be restored
    dry_run: bool = False
    processes: int = 0  # 0 means one for each core
    image_cache: Path | None = None  # of recompressed images; None means the user's cache folder

    def __post_init__(self) -> None:
        _ = self.drops  # its names must be known
        if (self.packs or self.no_pack or self.drop_unopened) and self.split:
            raise UsageError(
                "--split makes a wheel of packs for each GPU; --pack, --no-pack and --drop-unopened do not go with it.",
                "Leave them out: the packs are in the output folder.",
            )
        if self.drop_unopened and self.workload and not self.workload.knows_files:
            raise UsageError(
                "The traces do not say which files were opened, and --drop-unopened needs that.",
                "Record the program with `torchtailor record`, or leave --drop-unopened out.",
            )
        if (self.packs or self.no_pack or self.drop_unopened) and self.workload is None:
            raise UsageError(
                "--pack, --no-pack and --drop-unopened belong to --workload.",
                "Add --workload TRACE, or leave the option out.",
            )
        if self.split and (self.workload or self.recompress or self.targets.keep_ptx):
            raise UsageError(
                "--split cannot be combined with --workload, --recompress or --keep-ptx: it moves all code as it is.",
                "Leave them out, or cut without --split.",
            )
        if self.packs and ":" in str(self.packs.absolute()):
            raise UsageError(
                f"{self.packs.absolute()} has a colon in it, which separates the paths of {PACK_VARIABLE}.",
                "Choose another folder with --pack.",
            )
        if self.packs and self.no_pack:
            raise UsageError("--pack and --no-pack exclude each other.", "Leave one out.")
        if self.driver is not None and not _DRIVER.fullmatch(self.driver):
            raise UsageError(f"{self.driver} is not the version of a driver.", "Write it as 550.54.14.")
        if self.recompress and not self.reads_zstd:
            raise ImpossibleError(
                f"Recompressed code needs driver 550.54 or newer, and the target has {self.driver}.",
                "Leave out --recompress, or require a newer driver with --driver.",
            )

    @property
    def reads_zstd(self) -> bool:
        """Whether the driver that the output must run on reads zstd; without a named one it is taken to be new."""
        return self.driver is None or tuple(map(int, self.driver.split(".")[:2])) >= _ZSTD_DRIVER

    @property
    def targets(self) -> Targets:
        return self.policy.targets

    @property
    def drops(self) -> Drops:
        return Drops.of([*(() if self.split else default_rules()), *self.drop], self.policy)

    def unopened(self, sizes: Mapping[str, int]) -> int:
        """Bytes of these files that the workload never opened."""
        return sum(sizes[path] for path in self.workload.unopened(sizes)) if self.workload else 0

    def left_out(
        self, sizes: Mapping[str, int], read_code: ReadCode, is_nvidias: Callable[[str], bool]
    ) -> FilesLeftOut:
        """Of these files, by path and size, those that are left out; `is_nvidias` says which are of NVIDIA's packages,
        that only --nvidia changes."""
        found = self.drops.find(sizes, read_code)
        if self.drop_unopened and self.workload:
            found |= {
                path: DroppedFile(path, UNOPENED, sizes[path])
                for path in self.workload.unopened({path: size for path, size in sizes.items() if path not in found})
            }
        refused = {path: file for path, file in found.items() if not self.nvidia and is_nvidias(path)}
        return FilesLeftOut({path: file for path, file in found.items() if path not in refused}, refused)

    @property
    def without_ptx(self) -> TailorOptions:
        """The same without --keep-ptx, for what has none to keep."""
        return replace(self, policy=replace(self.policy, targets=replace(self.targets, keep_ptx=False)))

    @property
    def label(self) -> str:
        """What names the cut in the version of a wheel: `sm90`, `sm90.w1a2b3c4`, `host`."""
        if self.split:
            return HOST
        return f"{self.targets.label}.{self.workload.label}" if self.workload else self.targets.label

    @property
    def workers(self) -> int:
        """How many processes or threads may work at once."""
        return self.processes or available_cores()

    @property
    def image_cache_folder(self) -> Path:
        if self.image_cache is not None:
            return self.image_cache
        return cache_folder() / "images"

    @property
    def packing(self) -> bool:
        """Whether code goes to packs."""
        return self.split or self.workload is not None

    @property
    def for_each_target(self) -> tuple[TailorOptions, ...]:
        """The same for each of the GPUs alone."""
        archs = self.targets.archs
        each = (
            replace(self.targets, archs=tuple(arch for arch in archs if arch.capability == device))
            for device in self.targets.devices
        )
        return tuple(replace(self, policy=replace(self.policy, targets=targets)) for targets in each)

    @property
    def without_targets(self) -> TailorOptions:
        """The same for no GPU."""
        return replace(self, policy=replace(self.policy, targets=replace(self.targets, archs=())))

    def with_default_strip(self) -> TailorOptions:
        """The same, where symbol tables go unless the user keeps them; whether for them alone, the input decides."""
        return self if self.strip is not None else replace(self, strip=True)

    def to_json(self) -> dict[str, Any]:
        """What decides the bytes of the output, as manifests have it."""
        dropping = {"drop": sorted(self.drop)} if self.drop else {}
        no_lto = {} if self.policy.keep_lto else {"lto": False}
        relr = {"relr": True} if self.relr else {}
        workload = (
            {
                "workload": {
                    "trace": self.workload.trace.digest,
                    "margin": self.workload.margin,
                    "pack": not self.no_pack,
                }
            }
            if self.workload
            else {}
        )
        return {
            "target": {
                "gpus": [str(device) for device in self.targets.devices],
                "archs": [str(arch) for arch in self.targets.archs],
                "keep_ptx": self.targets.keep_ptx,
                "label": self.label,
            },
            "policy": {
                **({"split": True} if self.split else {}),
                "strip": self.strip,
                "nvidia": self.nvidia,
                "recompress": {"level": self.level, "driver": self.driver} if self.recompress else None,
                **no_lto,
                **relr,
                **dropping,
                **workload,
            },
        }
