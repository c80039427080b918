"""What an output may replace: what an earlier run made, and what has the same bytes anyway; all else is refused."""

from __future__ import annotations

import filecmp
import json
import os
from pathlib import Path

from torchtailor.core.errors import BadInputError, TorchtailorError, UsageError
from torchtailor.core.trust import Limit, read_limited
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import MANIFEST
from torchtailor.workload.pack import PACK_FOLDER


def check_wheel_place(target: Path, source: Path | None = None) -> None:
    """Refuse to replace a wheel that is neither an output nor a copy of `source`."""
    if os.path.lexists(target) and not _same(target, source) and not _is_cut_wheel(target):
        raise refusal(target)


def check_library_place(target: Path, library: Path) -> None:
    """Refuse to replace a file that is neither an output, with its manifest beside it, nor a copy of the input."""
    if os.path.lexists(target) and not _same(target, library) and not manifest_beside(target).is_file():
        raise refusal(target)


def check_folder_place(output: Path) -> None:
    """Refuse to replace what is not the output of a folder; an empty folder is as good as none, a link is not."""
    empty = output.is_dir() and not any(output.iterdir())
    if output.is_symlink() or (output.exists() and not empty and not _is_cut_folder(output)):
        raise refusal(output)


def check_nothing_lost(output: Path, new: Path) -> None:
    """Refuse to replace an earlier output in which there is more by now than in the new one."""
    if not output.is_dir():
        return
    if more := sorted(_files(output) - _files(new)):
        raise UsageError(
            f"{output} already exists, and has files that the new one has not, such as {more[0]}.",
            "Remove it or choose another -o.",
        )


def manifest_beside(library: Path) -> Path:
    """Where the manifest of a single library is."""
    return library.with_name(f"{library.name}.{MANIFEST}")


def refusal(path: Path) -> UsageError:
    """Why something that is there is not replaced."""
    return UsageError(
        f"{path} already exists, and nothing says that torchtailor made it: it is not replaced.",
        "Remove it or choose another -o.",
    )


def _same(target: Path, source: Path | None) -> bool:
    return source is not None and target.is_file() and filecmp.cmp(target, source, shallow=False)


def _is_cut_wheel(path: Path) -> bool:
    try:
        with WheelArchive(path) as archive:
            return any(name.endswith(f".dist-info/{MANIFEST}") for name in archive.members)
    except (TorchtailorError, OSError):
        return False


def _is_cut_folder(path: Path) -> bool:
    return manifest_entry(path / MANIFEST, "input", "kind") == ArtifactKind.FOLDER.value


def manifest_entry(path: Path, part: str, key: str) -> object:
    """What a manifest says under a key of one of its parts; None where it does not, or is no manifest."""
    try:
        found: object = json.loads(read_limited(path, Limit.MANIFEST))[part][key]
    except (BadInputError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found


def _files(folder: Path) -> set[str]:
    """Files and links below a folder, without what comes and goes by itself: compiled Python, packs and their hook."""
    top = len(os.path.join(folder, ""))  # noqa: PTH118
    paths = (f"{place}/{name}"[top:] for place, _, names in os.walk(folder) for name in names)
    return {path for path in paths if not {"__pycache__", PACK_FOLDER} & set(path.split("/"))}
