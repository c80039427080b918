"""Folders that are made beside their place and put there when they are finished, in one step where the system can."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def stage_beside(place: Path) -> Iterator[Path]:
    """A folder to work in, on the same disk; gone afterwards, and with it what killed processes have left."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f".{glob.escape(place.name)}.*.new"):
        pid = left.name.split(".")[-2]
        if not pid.isdigit() or not _runs(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    stage = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def swap_into_place(stage: Path, place: Path) -> None:
    """After this, `place` is what `stage` was; a reader never finds nothing there, where the kernel can exchange."""
    if not place.exists():
        stage.rename(place)
        return
    if _exchange(stage, place):
        shutil.rmtree(stage, ignore_errors=True)
        return
    old = stage.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    place.rename(old)
    stage.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(second))
