"""What tailoring a library, wheel, folder or environment gave, library by library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from torchtailor.core.documents import Bytes, document
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import BakedCaches
from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
from torchtailor.tailoring.manifest import LibraryDocument, StandInDocument, library_document
from torchtailor.tailoring.module_index import ModuleIndex
from torchtailor.tailoring.moved_paths import MovedPath
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.trees.artifact.drops import DroppedFile

GonePackages = Annotated[tuple[str, ...], Meta(description="that only a GPU needs")] | UnsetType
ChangedRequirements = (
    Annotated[dict[str, str | None], Meta(description="what is left of each without a GPU; null: nothing")] | UnsetType
)
COPIED = "Nothing was cut: copied unchanged."


def not_cut(name: str, what: str) -> tuple[str, str]:
    """What is said, and what to do, where an input is of a platform that is not cut."""
    return (
        f"{name} {what}, which is read and not cut; nothing was written.",
        "Only NVIDIA's code in libraries for Linux is cut; `torchtailor inspect` shows what is in there.",
    )


@dataclass(frozen=True, slots=True)
class PackWheel:
    """A wheel of the packs for one GPU, which a split makes beside the one without GPU code."""

    path: Path
    target: Annotated[str, Meta(description="the GPU: `sm90`")]
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TailorResult:
    """One input: what it was, where the output is, and its libraries."""

    kind: ArtifactKind
    source: Path
    output: Path | None
    libraries: tuple[LibraryResult, ...]
    size_before: int  # of the library, wheel, folder or distributions
    size_after: int
    dry_run: bool = False
    sha256_before: str = ""
    sha256_after: str = ""
    notes: tuple[str, ...] = ()
    dropped_files: tuple[DroppedFile, ...] = ()  # that the output goes without
    kept_files: tuple[DroppedFile, ...] = ()  # that it would go without with --nvidia
    moved_files: tuple[MovedPath, ...] = ()  # files and folders that lie beside the packs now
    packs_size: int = 0  # bytes of the output that lie apart
    unopened: int = 0  # bytes of large files that the workload never opened
    removed_size: int = 0  # bytes that --keep-removed keeps, for all cuts of the environment
    pack_wheels: tuple[PackWheel, ...] = ()  # of a split
    stand_ins: tuple[GpuStandIn, ...] = ()  # for NVIDIA's libraries, where no GPU code stays
    changed_requirements: Mapping[str, str | None] = field(default_factory=dict)  # without a GPU; None: it is gone
    gone_packages: tuple[str, ...] = ()  # that only a GPU needs
    module_indexes: tuple[ModuleIndex, ...] = ()
    baked_caches: tuple[BakedCaches, ...] = ()
    not_needed: bool = False  # a package that is for a GPU only: there is no output

    @property
    def changed(self) -> tuple[LibraryResult, ...]:
        return tuple(library for library in self.libraries if library.status.changed)

    @property
    def differs(self) -> bool:
        """Whether the output is another one than the input: something was cut, left out or added."""
        added = self.moved_files or self.stand_ins or self.module_indexes or self.baked_caches
        return bool(self.changed or self.dropped_files or added or self.changed_requirements)

    @property
    def has_ptx(self) -> bool:
        """Whether PTX is left in a library."""
        return any(library.ptx for library in self.libraries)

    @property
    def could_save(self) -> int:
        """What --nvidia would save."""
        return sum(library.could_save for library in self.libraries)

    @property
    def could_leave_out(self) -> int:
        """What --nvidia would leave out: files of NVIDIA's packages that a rule names."""
        return sum(file.size for file in self.kept_files)

    @property
    def could_strip(self) -> int:
        """What --strip would save."""
        return sum(library.could_strip for library in self.libraries)

    @property
    def could_drop_lto(self) -> int:
        """What --no-lto would save."""
        return sum(library.lto_kept for library in self.changed)

    @property
    def foreign(self) -> tuple[str, ...]:
        """The platforms of other makers, where all of its GPU code is for these."""
        if any(library.has_gpu_code or library.cut_before for library in self.libraries):
            return ()
        return tuple(dict.fromkeys(library.foreign for library in self.libraries if library.foreign))

    @property
    def useless_for_target(self) -> bool:
        """Whether there is GPU code, and none of it runs on the target."""
        with_code = [library for library in self.libraries if library.has_gpu_code]
        if self.foreign:
            return True
        if any(library.cut_before for library in self.libraries):
            return False
        if any(library.moved_digest for library in with_code):
            return not any(library.packed for library in with_code)
        return bool(with_code) and all(library.status is LibraryStatus.NOTHING_FOR_TARGET for library in with_code)

    @property
    def size_after_unknown(self) -> bool:
        """Whether it is a wheel that would be cut: how well it compresses is only known then."""
        return self.dry_run and self.differs and self.kind is ArtifactKind.WHEEL

    @property
    def document(self) -> TailoredInput:
        """The row of `tailor --json`; what only a finished output has is null where there is none."""
        planned = self.dry_run and self.differs
        return document(
            TailoredInput,
            self,
            size_after=None if self.size_after_unknown else self.size_after,
            sha256_before=self.sha256_before or None,
            sha256_after=(not planned and self.sha256_after) or None,
            libraries=[*map(library_document, self.libraries)],
            moved_files=self.moved_files or UNSET,
            stand_ins=self.stand_ins or UNSET,
            changed_requirements=self.changed_requirements or UNSET,
            gone_packages=self.gone_packages or UNSET,
            module_indexes=self.module_indexes or UNSET,
            baked_caches=self.baked_caches or UNSET,
            pack_wheels=self.pack_wheels or UNSET,
        )


class TailoredInput(Struct):
    """One path, or one site-packages folder of an environment."""

    kind: ArtifactKind
    source: Path
    output: Path | None
    size_before: Bytes
    size_after: Annotated[
        int | None, Meta(description="bytes; in a dry run without packs, and null for a wheel that it would change")
    ]
    sha256_before: Annotated[str | None, Meta(description="hexadecimal; null for folders and environments")]
    sha256_after: Annotated[str | None, Meta(description="hexadecimal; null also in a dry run that would change it")]
    removed_size: Annotated[int, Meta(description="bytes that --keep-removed keeps")]
    packs_size: Annotated[int, Meta(description="bytes of `size_after` that are packs, and files beside them")]
    unopened: Annotated[int, Meta(description="bytes of large files that the workload never opened")]
    could_save: Bytes
    could_leave_out: Bytes
    could_strip: Bytes
    could_drop_lto: Bytes
    dropped_files: tuple[DroppedFile, ...]
    useless_for_target: bool
    notes: tuple[str, ...]
    libraries: tuple[LibraryDocument, ...]
    moved_files: (
        Annotated[tuple[MovedPath, ...], Meta(description="files and folders that a link leads to")] | UnsetType
    ) = UNSET
    stand_ins: tuple[StandInDocument, ...] | UnsetType = UNSET
    changed_requirements: ChangedRequirements = UNSET
    gone_packages: GonePackages = UNSET
    module_indexes: tuple[ModuleIndex, ...] | UnsetType = UNSET
    baked_caches: tuple[BakedCaches, ...] | UnsetType = UNSET
    pack_wheels: Annotated[tuple[PackWheel, ...], Meta(description="of a split")] | UnsetType = UNSET
