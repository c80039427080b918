"""Puts a finished folder in the place of an older one, in one step where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


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
