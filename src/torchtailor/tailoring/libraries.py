"""Which files are libraries, and how one that was found in a wheel, a folder or an environment is cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchtailor.artifact.libraries import is_elf, is_shared_name
from torchtailor.errors import BadInputError, EnvironmentProblem, TorchtailorError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.options import TailorOptions
from torchtailor.surgery.result import LibraryResult, LibraryStatus


def is_library(path: Path) -> bool:
    """Whether a file is named like a shared library and is an ELF file."""
    return is_shared_name(path.name) and is_elf(path)


def cut_library(
    name: str, source: Path, target: Path, options: TailorOptions, *, proprietary: bool, durable: bool = False
) -> LibraryResult:
    """Cut one library of an input; one that is damaged is reported, not an error.

    One that is `proprietary` (of NVIDIA's) is cut only with --nvidia; otherwise the result says what that would save.
    """
    try:
        return cut_strictly(name, source, target, options, proprietary=proprietary, durable=durable)
    except BadInputError as error:
        reason = error.message.removeprefix(f"{source}: ")
        return LibraryResult.not_read(LibraryStatus.SKIPPED, name, source.stat().st_size, reason)
    except TorchtailorError as error:  # by the name the user knows, not that of a temporary file
        raise type(error)(error.message.replace(str(source), name), error.hint) from error


def cut_strictly(
    name: str, source: Path, target: Path, options: TailorOptions, *, proprietary: bool, durable: bool = False
) -> LibraryResult:
    """The same, where a damaged library is an error; an OSError is left to the caller, who knows the user's paths."""
    refused = proprietary and not options.nvidia
    place = None if refused or options.dry_run else target
    try:
        result = replace(tailor_library(source, place, options, durable=durable), path=name)
    except EnvironmentProblem as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
    if not refused:
        return result
    return (
        result.not_cut(LibraryStatus.NEEDS_NVIDIA_OPTION) if result.status.changed else replace(result, could_strip=0)
    )
