"""Which files are libraries or programs with GPU code, and how one found in a wheel, folder or environment is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.disk import hash_file
from torchtailor.core.errors import BadInputError, EnvironmentProblem, TorchtailorError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.layout import UnsupportedLayoutError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.packs import hook_for, pack_place, packs_beside
from torchtailor.tailoring.tree import FileState, FileTree, NewFile, is_refused
from torchtailor.trees.artifact.libraries import LibraryFile, is_shared_name, why_not_cut
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.pack import PACK_FOLDER, PackPlace

REFUSED = "NVIDIA's own, unchanged without --nvidia"
_NAMES_CACHES = "Triton names its caches by the bytes of this library; without --bake-caches it is cut"


def is_library(file: LibraryFile) -> bool:
    """Whether a file is a shared library, by its name and its first bytes, or a program with GPU code; the hook of an
    earlier cut is none that is cut."""
    if not file.is_elf or PACK_FOLDER in file.name.split("/"):
        return False
    if is_shared_name(file.name):
        return True
    with file.open() as source:
        return is_program_with_code(source)


def is_program_with_code(source: ByteSource) -> bool:
    """Whether it is a program that can be cut, and has GPU code."""
    try:
        elf = ElfFile(source)
        source.verify()
        return not why_not_cut(elf) and bool(scan_elf(elf).containers)
    except BadInputError:
        return False


@dataclass(frozen=True)
class LibraryJob:
    """One library of an input: where it lies, where its cut goes, and how it is cut."""

    name: str
    size: int
    source: Path
    target: Path
    options: Cut
    proprietary: bool
    pack: PackPlace | None = None
    sha256: str = ""  # of the source, where it is known

    @classmethod
    def of(
        cls,
        tree: FileTree,
        name: str,
        size: int,
        source: Path,
        target: Path,
        options: Cut,
        *,
        packs: Path | None = None,
        names: Sequence[str] = (),
        **more: Any,
    ) -> Self:
        """The job for a library of a tree, of which `names` are all; its pack goes to a folder beside the target."""
        proprietary = is_refused(tree, *(names or (name,)))
        pack = pack_place(tree, name, options, packs or target.parent / "pack")
        return cls(name, size, source, target, options, proprietary, pack, **more)

    def cut(self, *, durable: bool = False) -> LibraryResult:
        """Cut it; one that is damaged, or laid out oddly, is reported, not an error.

        One that is `proprietary` (of NVIDIA's) is cut only with --nvidia; otherwise the result says what that would
        save. Of a program only GPU code is cut, and none goes to a pack.
        """
        if self.options.caches and self.options.caches.are_named_by(self.name):
            return LibraryResult.not_read(LibraryStatus.SKIPPED, self.name, self.source.stat().st_size, _NAMES_CACHES)
        try:
            if is_shared_name(self.name):
                return self.cut_strictly(durable=durable)
            program = replace(self, options=replace(self.options.without_workload, strip=False))
            return replace(program.cut_strictly(durable=durable), could_strip=0)
        except (BadInputError, UnsupportedLayoutError) as error:
            reason = error.message.removeprefix(f"{self.source}: ")
            return LibraryResult.not_read(LibraryStatus.SKIPPED, self.name, self.source.stat().st_size, reason)
        except TorchtailorError as error:  # by the name the user knows, not that of a temporary file
            raise type(error)(error.message.replace(str(self.source), self.name), error.hint) from error

    def cut_strictly(self, *, durable: bool = False) -> LibraryResult:
        """The same, where such a library is an error; an OSError is left to the caller, who knows the user's paths."""
        refused = self.proprietary and not self.options.nvidia
        # also of what its name does not tell: programs
        options = replace(self.options, keep_all_minors=True) if self.proprietary else self.options
        target = None if refused or options.dry_run else self.target
        try:
            result = tailor_library(self.source, target, options, durable=durable, sha256=self.sha256, pack=self.pack)
            result = replace(result, path=self.name)
        except EnvironmentProblem as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise
        if not refused:
            return result
        result = replace(result, not_packed=REFUSED if options.relr else "")
        if result.status.changed:
            return result.not_cut(LibraryStatus.NEEDS_NVIDIA_OPTION)
        return replace(result, could_strip=0)

    def added(self, tree: FileTree, result: LibraryResult) -> list[NewFile]:
        """The hook and the pack that the cut library needs beside it."""
        if not (result.pack and result.status.changed):
            return []
        folder, package = packs_beside(tree, self.name), next(iter(tree.packages(self.name)), None)
        hook = hook_for(self.target)
        files = [NewFile(f"{folder}/{HOOK_NAME}", hook, FileState(hash_file(hook), hook.stat().st_size), package)]
        if self.pack and self.pack.folder and self.options.packs is None:
            state = FileState(result.pack_sha256, result.pack_size)
            files.append(NewFile(f"{folder}/{result.pack}", self.pack.folder / result.pack, state, package))
        return files
