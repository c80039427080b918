"""Writing to disk so that nothing is ever half there, and saying plainly what the disk would not do."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchtailor.errors import EnvironmentProblem

_WORKING = ".torchtailor-"
_LOCK = "lock"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def explained(folder: Path, *, unchanged: str = "Nothing was changed.") -> Iterator[None]:
    """Turns what the disk says into one sentence about the folder that is written to."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise EnvironmentProblem(
                f"The disk is full: {folder} has no room for the output.",
                f"{unchanged} Free some space and run it again.",
            ) from error
        if error.errno in _FORBIDDEN:
            why = "is on a read-only disk" if error.errno == errno.EROFS else "may not be written by this user"
            raise EnvironmentProblem(
                f"{error.filename or folder} {why}.", f"{unchanged} Choose another place or run it as its owner."
            ) from error
        if error.errno is None:
            raise
        raise EnvironmentProblem(f"{error.filename or folder}: {os.strerror(error.errno)}.", unchanged) from error


def existing(folder: Path) -> Path:
    """The folder, or what of its path exists already."""
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """A folder for intermediate files on the disk of the output; gone afterwards, or, if we are killed, when the next
    run comes by."""
    _remove_stale(parent)
    folder = Path(tempfile.mkdtemp(prefix=_WORKING, dir=parent))
    try:
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    """Remove working folders whose process is dead: their lock is free."""
    for folder in parent.glob(f"{_WORKING}*"):
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # at work, just being made, or not ours
            continue


def write_atomically(path: Path, data: bytes, *, staging: Path | None = None, mode: int = 0o644) -> None:
    """Put a small file in place, whole and on disk; `staging` is another folder of the same file system."""
    descriptor, name = tempfile.mkstemp(prefix=".torchtailor-", dir=staging or path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes, mode and times; shared, not copied, where the file system can (never a hard link: a later change
    of the copy must not change the original)."""
    with source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        done = 0
        try:
            while done < size:
                step = os.copy_file_range(reader.fileno(), writer.fileno(), size - done)
                if not step:
                    break
                done += step
        except OSError as error:
            if error.errno in _FULL:
                raise
        if done < size:
            reader.seek(done)
            writer.seek(done)
            shutil.copyfileobj(reader, writer, 1 << 20)
    shutil.copystat(source, target)
