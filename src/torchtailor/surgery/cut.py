"""What the user chose for a cut, in one value that every command and every kind of input takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torchtailor.catalog import Catalog, TorchArch, load_catalog
from torchtailor.catalog.gpus import GpuRules
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.cgroups import available_cores
from torchtailor.core.disk import cache_folder
from torchtailor.core.errors import ImpossibleError, UsageError
from torchtailor.surgery.cut_document import (
    CutDocument,
    JobCut,
    PagesPolicy,
    PolicyDocument,
    RecompressionPolicy,
    TargetDocument,
    WorkloadPolicy,
)
from torchtailor.trees.artifact.drops import DroppedFile, Drops, ReadCode, ReadHead, default_rules
from torchtailor.trees.artifact.libraries import is_shared_name
from torchtailor.trees.wheels.name import HOST
from torchtailor.workload.caches import Caches
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.pack import PACK_VARIABLE

_Choice = TypeVar("_Choice", bound=Enum)

DEFAULT_LEVEL = 19  # of zstd
UNOPENED = "unopened"  # the rule of files that the workload never opened
GPU_ONLY = "gpu-only"  # the rule of files that are of no use without a GPU
_DRIVER = re.compile(r"\d+(\.\d+)*")
_ZSTD_DRIVER = (550, 54)  # the driver of CUDA 12.4, the first that reads zstd entries


class HostPages(Enum):
    """Which pages of libraries leave the file for the pack, of those that the workload did not touch."""

    KEEP = "keep"
    CODE = "code"
    ALL = "all"  # and read-only data

    @classmethod
    def of(cls, word: str) -> HostPages:
        return _named(cls, word, "--host-pages")


class PackCompression(Enum):
    """How the pages in a pack are stored."""

    NONE = "none"  # they are mapped from the file
    ZSTD = "zstd"  # they are unpacked to memory when they are needed

    @classmethod
    def of(cls, word: str) -> PackCompression:
        return _named(cls, word, "--pack-compress")


# bytes: a raw pack is mapped whole, and of a compressed one each piece is a mapping
_GAPS = {PackCompression.NONE: 4 << 10, PackCompression.ZSTD: 8 << 10}


def _left(pages: PagesPolicy | None, used: WorkloadPolicy | None) -> HostPages | None:
    """What was chosen; None where it is what is usual with and without packs."""
    left = HostPages(pages.left) if pages else HostPages.KEEP
    usual = HostPages.CODE if used and used.pack else HostPages.KEEP
    return None if left is usual else left


def _named(kind: type[_Choice], word: str, option: str) -> _Choice:
    try:
        return kind(word)
    except ValueError:
        names = ", ".join(str(one.value) for one in kind)
        raise UsageError(f"{option} {word} is unknown.", f"Choose one of {names}.") from None


@dataclass(frozen=True, slots=True)
class FilesLeftOut:
    """Files that an output goes without, and those that it would go without with --nvidia; by path."""

    files: Mapping[str, DroppedFile]
    refused: Mapping[str, DroppedFile]

    def and_also(self, files: Mapping[str, DroppedFile]) -> FilesLeftOut:
        """With more files, whatever other rules say of them."""
        return FilesLeftOut(
            {**self.files, **files}, {path: one for path, one in self.refused.items() if path not in files}
        )

    def others(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The files that no rule names."""
        return {path: size for path, size in sizes.items() if path not in self.files and path not in self.refused}


@dataclass(frozen=True)
class Cut:
    """For which GPUs code stays, what else is done to libraries and files, and how the work is done."""

    targets: Targets = field(default_factory=lambda: Targets(()))  # of a build, each variant has its own
    lto: bool = True  # keep LTO-IR
    strip: bool | None = None  # remove symbol tables; None: of what GPU code is cut from
    relr: bool = False  # store relative relocations as glibc 2.36 and newer can read them
    nvidia: bool | None = None  # cut NVIDIA's proprietary libraries too; None: as torchtailor.toml has it
    recompress: bool = False  # store LZ4 and raw images as zstd
    level: int = DEFAULT_LEVEL  # of zstd
    driver: str | None = None  # the oldest driver the output must run on, such as 550.54
    drop: tuple[str, ...] = ()  # names of rules for files that are left out, besides those that always count
    workload: TracedWorkload | None = None  # what stays in place of what the targets can run; the rest goes to packs
    packs: Path | None = None  # the folder for packs; None means beside the libraries
    caches: Caches | None = None  # compile caches that programs start with
    drop_unopened: bool = False  # leave out files that the workload never opened
    index_modules: bool = False  # modules that the workload imported in one file a package too
    no_pack: bool = False  # make none: what the workload does not use is gone
    host_pages: HostPages | None = None  # None: code, where there are a workload and packs
    gap: int | None = None  # fewer untouched bytes than these between touched ones stay; None: as the packs have it
    debuggable: bool = False  # unwind tables stay, for debuggers
    pack_compress: PackCompression = PackCompression.NONE  # of the pages in packs
    split: bool = False  # all code that a hook can hand out goes to packs, one for the targets; see tailoring/split.py
    also: tuple[str, ...] = ()  # of a split: other distributions that are split, whose packs come with this one's
    # how the work is done, which changes no byte
    keep_removed: bool = False  # in an environment: keep what is cut out, so that it can be restored
    dry_run: bool = False
    processes: int = 0  # 0 means one for each core
    image_cache: Path | None = None  # of recompressed images; None means the user's cache folder
    rules: GpuRules | None = field(default=None, repr=False, compare=False)  # None: those of the catalog
    keep_all_minors: bool = False  # of a library of NVIDIA's, whatever its name

    def __post_init__(self) -> None:
        Drops.of(self.drop, None)  # its names must be known
        if (self.packs or self.no_pack or self.drop_unopened) and self.split:
            raise UsageError(
                "--split makes a wheel of packs for each GPU; --pack, --no-pack and --drop-unopened do not go with it.",
                "Leave them out: the packs are in the output folder.",
            )
        by_files = "--drop-unopened" if self.drop_unopened else "--index-modules" if self.index_modules else ""
        if by_files and self.workload and not self.workload.knows_files:
            raise UsageError(
                f"The traces do not say which files were opened, and {by_files} needs that.",
                f"Record the program with `torchtailor record`, or leave {by_files} out.",
            )
        if (self.packs or self.no_pack or by_files) and self.workload is None:
            raise UsageError(
                "--pack, --no-pack, --drop-unopened and --index-modules belong to --workload.",
                "Add --workload TRACE, or leave the option out.",
            )
        if self.split and (self.workload or self.recompress or self.targets.keep_ptx):
            raise UsageError(
                "--split cannot be combined with --workload, --recompress or --keep-ptx: it moves all code as it is.",
                "Leave them out, or cut without --split.",
            )
        if self.caches and (self.split or self.drop_unopened):
            raise UsageError(
                "--bake-caches does not go with --split and --drop-unopened: torch names its caches by its sources.",
                "Cut first, record --caches with what was cut, and bake them with a second cut.",
            )
        self._check_pages()
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

    def _check_pages(self) -> None:
        packed = self.pack_compress is not PackCompression.NONE
        given = {
            "--host-pages": self.host_pages not in (None, HostPages.KEEP),
            "--gap": self.gap is not None,
            "--debuggable": self.debuggable,
            "--pack-compress": packed,
        }
        if (names := [name for name, chosen in given.items() if chosen]) and self.workload is None:
            verb = "belongs" if len(names) == 1 else "belong"
            raise UsageError(
                f"{' and '.join(names)} {verb} to --workload.", "Add --workload TRACE, or leave the option out."
            )
        if self.gap is not None and self.gap < 0:
            raise UsageError(f"--gap {self.gap} is less than nothing.", "Give a number of bytes, such as 8192.")
        if self.no_pack and (self.host_pages is HostPages.ALL or packed):
            name = "--pack-compress" if packed else "--host-pages all"
            raise UsageError(
                f"{name} needs packs: without its pack a library whose data was cut does not start."
                if not packed
                else f"{name} is for packs, and --no-pack makes none.",
                "Leave --no-pack out, or use --host-pages code." if not packed else "Leave one out.",
            )

    @property
    def pages(self) -> HostPages:
        """Which pages leave libraries: where nobody chose, code that the packs have."""
        if self.host_pages is not None:
            return self.host_pages
        return HostPages.CODE if self.workload and not self.no_pack else HostPages.KEEP

    @property
    def packs_unopened(self) -> bool:
        """Whether libraries that the workload never loaded go to packs, all but what the dynamic linker reads."""
        known = self.drop_unopened and self.workload is not None and self.workload.knows_pages
        return known and self.pages is not HostPages.KEEP and not self.no_pack

    @property
    def reads_zstd(self) -> bool:
        """Whether the driver that the output must run on reads zstd; without a named one it is taken to be new."""
        return self.driver is None or tuple(map(int, self.driver.split(".")[:2])) >= _ZSTD_DRIVER

    @cached_property
    def policy(self) -> Policy:
        """Which GPU code stays."""
        rules = self.rules or load_catalog().rules
        return Policy(self.targets, rules, keep_lto=self.lto, keep_all_minors=self.keep_all_minors)

    def resolved(self, catalog: Catalog) -> Cut:
        """The same with every choice made that the user's file may make."""
        return replace(self, nvidia=catalog.tailor.nvidia if self.nvidia is None else self.nvidia, rules=catalog.rules)

    @property
    def drops(self) -> Drops:
        return Drops.of([*(() if self.split else default_rules()), *self.drop], self.policy)

    def unopened(self, sizes: Mapping[str, int]) -> int:
        """Bytes of these files that --drop-unopened would leave out."""
        if self.drop_unopened or self.workload is None:
            return 0
        return sum(sizes[path] for path in self.workload.unopened(sizes, sources=not self.no_pack))

    def left_out(
        self,
        sizes: Mapping[str, int],
        read_code: ReadCode,
        read_head: ReadHead,
        is_nvidias: Callable[[str], bool],
        drops: Drops | None = None,
        *,
        sources: bool = False,
        libraries: bool = False,
    ) -> FilesLeftOut:
        """Of these files, by path and size, those that are left out; `is_nvidias` says which are of NVIDIA's packages,
        that only --nvidia changes. With `sources` modules that were never imported go, into packs; with `libraries`
        those that were never loaded too, which else stay where their pages go to packs."""
        found = (drops or self.drops).find(sizes, read_code, read_head)
        if self.drop_unopened and self.workload:
            found |= {
                path: DroppedFile(path, UNOPENED, sizes[path])
                for path in self.workload.unopened(
                    {path: size for path, size in sizes.items() if path not in found},
                    sources=sources and not self.no_pack,
                )
                if libraries or not (self.packs_unopened and is_shared_name(path))
            }
        refused = {path: file for path, file in found.items() if not self.nvidia and is_nvidias(path)}
        return FilesLeftOut({path: file for path, file in found.items() if path not in refused}, refused)

    @property
    def without_ptx(self) -> Cut:
        """The same without --keep-ptx, for what has none to keep."""
        return replace(self, targets=replace(self.targets, keep_ptx=False))

    @property
    def label(self) -> str:
        """What names the cut in the version of a wheel: `sm90`, `sm90.w1a2b3c4`, `host`."""
        if self.split:
            return HOST
        own = self.targets.label
        return ".".join(part for part in (own, self.workload.label) if part) if self.workload else own

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
    def for_each_target(self) -> tuple[Cut, ...]:
        """The same for each of the GPUs alone."""
        archs = self.targets.archs
        each = (
            replace(self.targets, archs=tuple(arch for arch in archs if arch.capability == device))
            for device in self.targets.devices
        )
        return tuple(replace(self, targets=targets) for targets in each)

    @property
    def without_targets(self) -> Cut:
        """The same for no GPU."""
        return replace(self, targets=replace(self.targets, archs=()))

    @property
    def without_gpu(self) -> Cut:
        """The same for machines without a GPU: there is no code to keep, compress or pack."""
        return replace(self, targets=Targets(()), recompress=False, split=False).without_workload

    @property
    def without_workload(self) -> Cut:
        """The same for whatever runs."""
        packing: dict[str, Any] = {"workload": None, "packs": None, "no_pack": False}
        packing |= {"drop_unopened": False, "index_modules": False}
        pages: dict[str, Any] = {"host_pages": None, "gap": None, "debuggable": False}
        return replace(self, **packing, **pages, pack_compress=PackCompression.NONE)

    def with_default_strip(self) -> Cut:
        """The same, where symbol tables go unless the user keeps them; whether for them alone, the input decides."""
        return self if self.strip is not None else replace(self, strip=True)

    @property
    def least_gap(self) -> int:
        """Bytes: fewer untouched ones between touched ones stay."""
        return _GAPS[self.pack_compress] if self.gap is None else self.gap

    @property
    def document(self) -> CutDocument:
        """What decides the bytes of the output, as manifests, the journal and `--json` have it."""
        used = self.workload
        return CutDocument(
            TargetDocument(
                tuple(map(str, self.targets.devices)),
                tuple(map(str, self.targets.archs)),
                self.targets.keep_ptx,
                self.label,
            ),
            PolicyDocument(
                strip=self.strip,
                nvidia=bool(self.nvidia),
                recompress=RecompressionPolicy(self.level, self.driver) if self.recompress else None,
                drop=tuple(sorted(self.drop)),
                lto=self.lto,
                relr=self.relr,
                split=self.split,
                workload=WorkloadPolicy(used.trace.digest, used.margin, not self.no_pack) if used else None,
                drop_unopened=self.drop_unopened,
                index_modules=self.index_modules,
                driver=None if self.recompress else self.driver,
                caches=self.caches.digest if self.caches else None,
                host_pages=PagesPolicy(self.pages.value, self.least_gap, self.debuggable, self.pack_compress.value)
                if self.pages is not HostPages.KEEP
                else None,
            ),
        )

    @property
    def for_job(self) -> JobCut:
        document = self.document
        return JobCut(document.target, document.policy, self.workload.trace if self.workload else None, self.also)

    @classmethod
    def of(cls, document: JobCut, **how: Any) -> Cut:
        """The cut of a job's document; `how` is how the work is done."""
        target, policy = document.target, document.policy
        used, pages = policy.workload, policy.host_pages
        compress = PackCompression(pages.packs) if pages else PackCompression.NONE
        return cls(
            Targets(tuple(arch for text in target.archs for arch in TorchArch.parse_list(text)), target.keep_ptx),
            lto=policy.lto,
            strip=policy.strip,
            relr=policy.relr,
            nvidia=policy.nvidia,
            recompress=policy.recompress is not None,
            level=policy.recompress.level if policy.recompress else DEFAULT_LEVEL,
            driver=policy.recompress.driver if policy.recompress else policy.driver,
            drop=policy.drop,
            workload=TracedWorkload(document.trace, used.margin) if used and document.trace else None,
            no_pack=bool(used and not used.pack),
            drop_unopened=policy.drop_unopened,
            index_modules=policy.index_modules,
            split=policy.split,
            host_pages=_left(pages, used),
            gap=pages.gap if pages and pages.gap != _GAPS[compress] else None,
            debuggable=bool(pages and pages.debuggable),
            pack_compress=compress,
            also=document.also,
            **how,
        )
