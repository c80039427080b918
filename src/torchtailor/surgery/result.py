"""What tailoring one library gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

_NOT_ASKED = "packed only where GPU code is cut from the package, or with --strip"


class LibraryStatus(Enum):
    """What was done to one library; `changed` says whether there is an output file."""

    CUT = "cut"  # GPU code was removed or recompressed (and symbol tables removed, where asked for)
    STRIPPED = "stripped"  # only symbol tables were removed, or relocations packed
    UNCHANGED = "unchanged"  # it cannot be made smaller: all of its code is needed, or cannot be moved
    NO_GPU_CODE = "no-gpu-code"  # and nothing to strip
    NOTHING_FOR_TARGET = "nothing-for-target"  # its GPU code runs on none of the targets
    NEEDS_NVIDIA_OPTION = "needs-nvidia-option"  # a proprietary library of NVIDIA's: --nvidia would cut it
    SKIPPED = "skipped"  # it could not be read or replaced; `reason` says why

    @property
    def changed(self) -> bool:
        return self in (LibraryStatus.CUT, LibraryStatus.STRIPPED)


@dataclass(frozen=True, slots=True)
class CodeTally:
    """Images of one architecture: how many, and the bytes they take in the file."""

    images: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class Recompressed:
    """What recompression did: images that were stored smaller, and their bytes before and after."""

    images: int = 0
    before: int = 0
    after: int = 0
    level: int = 0
    from_cache: int = 0


@dataclass(frozen=True, slots=True)
class PagesLeft:
    """What a cut to the touched pages did; bytes of segments without write access."""

    hot: int  # that are in the file
    cold: int  # that are in the pack alone
    runs: int  # pieces that the file has of it
    data: bool  # read-only data is among them: it does not start without its pack


@dataclass(frozen=True, slots=True)
class LibraryResult:
    """What tailoring one library gave; sizes are bytes.

    `kept` and `dropped` are by architecture as cuobjdump spells it (`sm_90a`, `compute_120`, `lto_50`). `floor` is
    the smallest the file could be with this policy: the kept GPU code as it is stored now and all loaded host code.
    `sha256_in` and `sha256_out` are hex digests, `instructions_sha256` that of the host instructions, which are the
    same in both; they are empty where no output was written. `warnings` are
    sentences for the user, such as a target for which the library has no code. `could_save` is what cutting a
    library that needs --nvidia would save, and `could_strip` what --strip would save of one that keeps its
    symbol tables.
    """

    status: LibraryStatus
    size_before: int
    size_after: int
    gpu_before: int = 0
    gpu_after: int = 0
    floor: int = 0
    kept: Mapping[str, CodeTally] = field(default_factory=dict)
    dropped: Mapping[str, CodeTally] = field(default_factory=dict)
    stripped: tuple[str, ...] = ()  # names of the sections that were removed
    recompressed: Recompressed | None = None
    sha256_in: str = ""
    sha256_out: str = ""
    instructions_sha256: str = ""
    warnings: tuple[str, ...] = ()
    could_save: int = 0
    could_strip: int = 0
    moved: Mapping[str, CodeTally] = field(default_factory=dict)  # to a pack, by architecture
    pack: str = ""  # the name of that pack
    pack_size: int = 0
    pack_sha256: str = ""
    packed: Mapping[str, CodeTally] = field(default_factory=dict)  # of what was moved, what a split's pack has
    moved_digest: str = ""  # of the keys of all that a split moved: of the same code it is the same
    filler: int = 0  # bytes of filler that patchelf had left, which left the file
    zeroed: int = 0  # bytes of removed code that stay in the file as zeros
    relr: int = 0  # bytes saved by packed relocations; such a library needs glibc 2.36
    not_paged: str = ""  # why it keeps the pages that the workload did not touch
    not_packed: str = ""  # why --relr packed none of its relocations
    pages: PagesLeft | None = None  # where it was cut to those that the workload touched
    ptx: bool = False  # PTX is left in it, or in its pack
    only_ptx: tuple[str, ...] = ()  # the targets that have no machine code in it and use its PTX
    path: str = ""  # in the wheel, folder or environment it was found in
    reason: str = ""  # why its code was not looked at
    cut_before: bool = False  # an earlier run made what this one would
    foreign: str = ""  # the platform of another maker that its GPU code is for, which is never cut

    @classmethod
    def not_read(cls, status: LibraryStatus, path: str, size: int, reason: str) -> LibraryResult:
        """A library that was not looked at."""
        return cls(status, size, size, path=path, reason=reason)

    def not_cut(self, status: LibraryStatus) -> LibraryResult:
        """The same library, unchanged: a cut was possible and was not wanted."""
        refused = status is LibraryStatus.NEEDS_NVIDIA_OPTION
        return replace(
            self,
            status=status,
            size_after=self.size_before,
            gpu_after=self.gpu_before,
            zeroed=0,
            relr=0,
            pages=None,
            could_save=self.saved + self.zeroed if refused else 0,
            could_strip=0 if refused else self.could_strip or self.saved - self.relr,
        )

    def with_symbols(self) -> LibraryResult:
        """The same library, unchanged: only its symbol tables would have gone, and nobody asked for that."""
        whole = self.not_cut(LibraryStatus.UNCHANGED if self.has_gpu_code else LibraryStatus.NO_GPU_CODE)
        return replace(whole, not_packed=_NOT_ASKED) if self.relr else whole

    @property
    def saved(self) -> int:
        return self.size_before - self.size_after

    @property
    def lto_kept(self) -> int:
        """Bytes of LTO-IR that stay, which only linking at run time uses."""
        return sum(tally.stored for label, tally in self.kept.items() if label.startswith("lto_"))

    @property
    def has_gpu_code(self) -> bool:
        return self.gpu_before > 0
