"""Which files are libraries or programs with GPU code, and how one found in a wheel, folder or environment is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import ByteSource, open_source
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.errors import BadInputError, EnvironmentProblem, TorchtailorError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.layout import UnsupportedLayoutError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.trees.artifact.libraries import is_elf, is_shared_name, may_be_elf, why_not_cut
from torchtailor.trees.wheels.archive import Member, open_member
from torchtailor.workload.pack import PackPlace

_NO_WORKLOAD: dict[str, Any] = {"workload": None, "packs": None, "no_pack": False, "drop_unopened": False}
REFUSED = "NVIDIA's own, unchanged without --nvidia"


def is_library(path: Path) -> bool:
    """Whether a file is a shared library, by its name and its first bytes, or a program with GPU code."""
    if is_shared_name(path.name):
        return is_elf(path)
    if not may_be_elf(path.name) or not is_elf(path):
        return False
    with open_source(path) as source:
        return is_program_with_code(source)


def is_packed_library(wheel: Path, member: Member) -> bool:
    """The same for an ELF file in a wheel."""
    if is_shared_name(member.name):
        return True
    with open_member(wheel, member) as source:
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

    def cut(self, *, durable: bool = False, pack: PackPlace | None = None) -> LibraryResult:
        return cut_library(
            self.name,
            self.source,
            self.target,
            self.options,
            proprietary=self.proprietary,
            durable=durable,
            pack=pack or self.pack,
        )


def cut_library(
    name: str,
    source: Path,
    target: Path,
    options: Cut,
    *,
    proprietary: bool,
    durable: bool = False,
    sha256: str = "",
    pack: PackPlace | None = None,
) -> LibraryResult:
    """Cut one library of an input; one that is damaged, or laid out oddly, is reported, not an error.

    One that is `proprietary` (of NVIDIA's) is cut only with --nvidia; otherwise the result says what that would save.
    Of a program only GPU code is cut, and none goes to a pack. `sha256` is that of `source`, where the caller knows it.
    """

    def cut(options: Cut) -> LibraryResult:
        return cut_strictly(
            name, source, target, options, proprietary=proprietary, durable=durable, sha256=sha256, pack=pack
        )

    try:
        if not is_shared_name(name):
            return replace(cut(replace(options, strip=False, **_NO_WORKLOAD)), could_strip=0)
        return cut(options)
    except (BadInputError, UnsupportedLayoutError) as error:
        reason = error.message.removeprefix(f"{source}: ")
        return LibraryResult.not_read(LibraryStatus.SKIPPED, name, source.stat().st_size, reason)
    except TorchtailorError as error:  # by the name the user knows, not that of a temporary file
        raise type(error)(error.message.replace(str(source), name), error.hint) from error


def cut_strictly(
    name: str,
    source: Path,
    target: Path,
    options: Cut,
    *,
    proprietary: bool,
    durable: bool = False,
    sha256: str = "",
    pack: PackPlace | None = None,
) -> LibraryResult:
    """The same, where such a library is an error; an OSError is left to the caller, who knows the user's paths."""
    refused = proprietary and not options.nvidia
    if proprietary:  # also what its name does not tell: programs
        options = replace(options, keep_all_minors=True)
    place = None if refused or options.dry_run else target
    try:
        result = tailor_library(source, place, options, durable=durable, sha256=sha256, pack=pack)
        result = replace(result, path=name)
    except EnvironmentProblem as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
    if not refused:
        return result
    result = replace(result, not_packed=REFUSED if options.relr else "")
    return (
        result.not_cut(LibraryStatus.NEEDS_NVIDIA_OPTION) if result.status.changed else replace(result, could_strip=0)
    )
