"""The one place that knows how files are written, locked, hashed and put in place, and where our folders are.

Everything appears whole or not at all: it is written under a temporary name on the same disk and then renamed.
Temporary files and folders are locked by who writes them, so one whose lock is free was left by a killed process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import platformdirs

from torchtailor.core.errors import BadInputError, CheckFailedError, EnvironmentProblem, UsageError

CACHE_VARIABLE = "TORCHTAILOR_CACHE"
STATE_VARIABLE = "TORCHTAILOR_STATE"
WORK_VARIABLE = "TORCHTAILOR_WORK"

_TEMPORARY = ".torchtailor-"
_FILE = ".tmp"
_LOCK = "lock"
_POLL = 0.02  # seconds between two tries for a lock
_CHUNK = 1 << 20  # stays in a core's cache; after each, a thread that hashes has to wait for Python's lock
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENODATA, errno.EINVAL)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # of a file system without them, such as some Lustre
_ACCESS_LIST = "system.posix_acl_access"
_OF_BYTES = frozenset(("security.ima", "security.evm"))  # hashes of what a file holds
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NOT_PLAIN = "it is not a plain file"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class DamagedFileError(CheckFailedError):
    """A file does not have the bytes that it had when it was checked."""

    def __init__(self, path: Path, why: str = "it does not have the SHA-256 that is listed for it") -> None:
        super().__init__(f"{path} is damaged: {why}.", "Build it again.")
        self.path = path


# Where our folders are


def cache_folder() -> Path:
    """What can be fetched or computed again: $TORCHTAILOR_CACHE or the platform's cache folder."""
    return _chosen(CACHE_VARIABLE) or platformdirs.user_cache_path("torchtailor", appauthor=False)


def can_keep_caches() -> bool:
    """Whether programs that are started here can write to the user's cache folder; some fail where they cannot."""
    folder = platformdirs.user_cache_path()
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)


def state_folder() -> Path:
    """The ledger and the logs: $TORCHTAILOR_STATE or the platform's state folder."""
    return _chosen(STATE_VARIABLE) or platformdirs.user_state_path("torchtailor", appauthor=False)


def work_folder() -> Path:
    """Builds from source: $TORCHTAILOR_WORK or a folder of the cache."""
    return _chosen(WORK_VARIABLE) or cache_folder() / "source"


def _chosen(variable: str) -> Path | None:
    chosen = os.environ.get(variable)
    return expand_home(chosen).absolute() if chosen else None


def expand_home(path: str | Path) -> Path:
    """`~` and `~user` as a shell reads them: where there is no such user, it is a name like any other."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (pathlib raises RuntimeError)


def existing_parent(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())


# What the disk refuses


@contextmanager
def disk_errors(folder: Path, *, unchanged: str = "Nothing was changed.") -> Iterator[None]:
    """Turn an error of the disk into one sentence about the folder that is written to."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        name = _known_place(Path(os.fsdecode(error.filename))) if error.filename else folder
        hint = f"{unchanged} Choose another place or run it as its owner."
        if error.errno in _FULL:
            raise EnvironmentProblem(
                f"The disk is full: {_known_place(folder)} has no room for the output.",
                f"{unchanged} Free some space and run it again.",
            ) from error
        if error.errno == errno.EROFS:
            raise EnvironmentProblem(f"{name} is on a read-only disk.", hint) from error
        if error.errno in _FORBIDDEN:
            raise EnvironmentProblem(f"{name} cannot be written: permission denied.", hint) from error
        raise EnvironmentProblem(
            f"{name} cannot be written: {os.strerror(error.errno)}.", f"{unchanged} Choose another place."
        ) from error


def _known_place(path: Path) -> Path:
    """What the user knows of a path: of something that is staged, the folder beside whose files it is."""
    staging = [one for one in (path, *path.parents) if one.name.startswith(_TEMPORARY)]
    return staging[-1].parent if staging else path


def check_replaceable(path: Path) -> None:
    """Refuse to put a file or folder in the place of a device, pipe or socket, or of a link to one."""
    try:
        kind = path.stat().st_mode
    except OSError:  # nothing there, or a link to nothing
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or _is_special(path):
        raise UsageError(
            f"{path} is not a file: it would be replaced, not written to.",
            "Give the name of a file; a dry run (--dry-run) writes nothing.",
        )


_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS of linux/fs.h
_FIXED = 0x10 | 0x20  # immutable, append only


def why_fixed(path: Path) -> str:
    """Why a file cannot be replaced, whatever its mode; empty where it can."""
    for one in (path, path.parent):
        with suppress(OSError):  # not there, or a file system without flags
            descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                flags = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
            finally:
                os.close(descriptor)
            if int.from_bytes(flags[:4], "little") & _FIXED:
                return f"{one} is immutable (chattr)"
    return ""


def _is_stream(path: Path) -> bool:
    """Whether a name is written to, not replaced: a device, a pipe, or one of the kernel's."""
    return path.exists() and not path.is_dir() and (not path.is_file() or _is_special(path))


def _is_special(path: Path) -> bool:
    """Whether a name is one of the kernel's, such as /dev/stdout, whatever it leads to."""
    return path.absolute().parts[1:2] in (("dev",), ("proc",)) and path.is_symlink()


# Hashes


def hash_file(file: Path | int, algorithm: str = "sha256") -> str:
    """The hash of a file, by path or open descriptor (whose position is left alone)."""
    if isinstance(file, Path):
        with plain_file(file, follow=True) as descriptor:
            return hash_file(descriptor, algorithm)
    hasher = hashlib.new(algorithm)
    buffer = memoryview(bytearray(_CHUNK))
    position = 0
    while size := os.preadv(file, [buffer], position):
        hasher.update(buffer[:size])
        position += size
    return hasher.hexdigest()


class _Intact:
    """Which files this process, and others that share a list with it, have read and found right."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], str] = {}
        self._shared: IO[bytes] | None = None

    def share(self, path: Path | None) -> None:
        with self._lock:
            if self._shared is not None:
                self._shared.close()
            self._shared = path.open("a+b", buffering=0) if path else None
            if self._shared:
                self._shared.seek(0)

    def has(self, identity: tuple[int, ...], sha256: str) -> bool:
        with self._lock:
            if self._known.get(identity) != sha256 and self._shared is not None:
                *lines, rest = self._shared.read().split(b"\n")
                self._shared.seek(-len(rest), os.SEEK_CUR)
                for line in lines:
                    *numbers, digest = line.decode("ascii").split()
                    self._known[tuple(map(int, numbers))] = digest
            return self._known.get(identity) == sha256

    def add(self, identity: tuple[int, ...], sha256: str) -> None:
        with self._lock:
            self._known[identity] = sha256
            if self._shared is not None:
                with suppress(OSError):  # a full disk: the others read it themselves
                    at = self._shared.tell()
                    self._shared.write(" ".join((*map(str, identity), sha256)).encode() + b"\n")
                    self._shared.seek(at)


_intact = _Intact()


@contextmanager
def sharing_intact(path: Path) -> Iterator[None]:
    """Within the block, what is read and found right is listed in a file, and what other processes list is taken."""
    share_intact(path)
    try:
        yield
    finally:
        share_intact(None)


def share_intact(path: Path | None) -> None:
    """Share which files were read and found right with the processes of this machine that name the same file."""
    _intact.share(path)


def check_intact(path: Path, sha256: str, descriptor: int | None = None) -> None:
    """Raise DamagedFileError unless a file has this hash.

    It must be one that nobody changes, such as those of the cache. It is read once, also under its other names (hard
    links), and again where its size or time is not what it was.
    """
    if descriptor is None:
        with plain_file(path, follow=True) as opened:
            check_intact(path, sha256, opened)
        return
    identity = _identity(descriptor)
    if not _intact.has(identity, sha256):
        _check_hash(descriptor, path, sha256)
        _intact.add(identity, sha256)


def hash_intact(path: Path) -> str:
    """The hash of a file that nobody changes from now on: `check_intact` does not read it again."""
    with plain_file(path, follow=True) as descriptor:
        digest = hash_file(descriptor)
        _intact.add(_identity(descriptor), digest)
    return digest


def _identity(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def is_intact(path: Path, sha256: str) -> bool:
    """Whether a plain file, which nobody changes, is there and has this hash."""
    try:
        with plain_file(path) as descriptor:
            check_intact(path, sha256, descriptor)
    except (OSError, DamagedFileError):
        return False
    return True


# Files


@contextmanager
def plain_file(path: Path, *, follow: bool = False) -> Iterator[int]:
    """Open a file that may come from elsewhere: a pipe, device or folder in its place is damage, and is not waited for.

    So is a link, unless those are followed that users make among their own files.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket, a device that is not there
            raise DamagedFileError(path, _NOT_PLAIN) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedFileError(path, _NOT_PLAIN)
        yield descriptor
    finally:
        os.close(descriptor)


def open_plain(path: Path) -> BinaryIO:
    """The same as a file of Python's, by whatever links; a pipe, device or folder is a BadInputError."""
    try:
        with plain_file(path, follow=True) as descriptor:
            return os.fdopen(os.dup(descriptor), "rb")
    except DamagedFileError as error:
        raise BadInputError(f"{path} is not a plain file.", "Check that it is the right file.") from error


def write_at(fd: int, at: int, data: bytes) -> int:
    """Write all of `data`; returns how much that was."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
    return len(data)


@contextmanager
def new_file(
    path: Path,
    *,
    mode: int | None = None,
    owner: os.stat_result | None = None,
    durable: bool = False,
    staging: Path | None = None,
) -> Iterator[BinaryIO]:
    """Write a file beside its place (or in `staging`, on the same disk); it is moved there when the block ends well.

    `mode` of None is what any new file gets; what root writes is given to the `owner` of this. `durable` means that
    it survives a power cut once this returns.
    """
    check_replaceable(path)
    try:
        with _temporary_file(staging or path.parent) as file:
            try:
                yield file
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                if owner is not None:
                    give_to(file.fileno(), owner)
                if durable:
                    os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(file.name).unlink()
                raise
    except OSError as error:
        if Path(str(error.filename)).name.startswith(_TEMPORARY):  # the user knows it by its real name
            error.filename = str(path)
        raise
    if durable:
        sync_folder(path.parent)


def write_atomically(
    path: Path,
    data: bytes,
    *,
    mode: int | None = None,
    owner: os.stat_result | None = None,
    durable: bool = False,
    staging: Path | None = None,
    modified: int | None = None,
) -> None:
    """Put a file in its place, whole or not at all; the options are those of `new_file`, and when it was modified, in
    nanoseconds."""
    with new_file(path, mode=mode, owner=owner, durable=durable, staging=staging) as file:
        file.write(data)
        if modified is not None:
            file.flush()
            os.utime(file.fileno(), ns=(modified, modified))


def check_output(path: Path) -> None:
    """Refuse a place that `write_output` could not write to, before the long work whose result goes there."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "Give the name of a file.")
    if not _is_stream(path):
        with disk_errors(path.parent), tempfile.TemporaryFile(dir=existing_parent(path.parent)):
            pass


def check_output_folder(folder: Path) -> None:
    """The same of a folder, which need not exist yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise UsageError(f"{there} is not a folder.", "Give a folder with -o.")
    with disk_errors(there), tempfile.TemporaryFile(dir=there, prefix=_TEMPORARY):
        pass


def write_output(path: Path, data: bytes, *, parents: bool = True, unchanged: str = "Nothing was changed.") -> None:
    """Write a file that the user asked for, and the folder it is in; a device or pipe is written to."""
    with disk_errors(path.parent, unchanged=unchanged):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(path):
            # without waiting for somebody who reads from a pipe: `>(...)` of a shell does already
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(data)
        else:
            write_atomically(path, data)


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes, mode and times; shared, not copied, where the file system can (never a hard link: a later change
    of the copy must not change the original)."""
    with source.open("rb") as reader, new_file(target) as writer:
        _copy_bytes(reader, writer)
        shutil.copystat(source, writer.name)


def copy_into_staging(source: str, target: str) -> None:
    """The same where nobody can see the copy yet: nothing is there, and it need not appear whole."""
    with open(source, "rb", buffering=0) as reader, open(target, "xb") as writer:  # noqa: PTH123
        _copy_bytes(reader, writer)
    shutil.copystat(source, target)


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes at a second place: a hard link where the disk allows it, else a copy."""
    check_replaceable(target)
    beside = target.with_name(f".{target.name[:80]}.{secrets.token_hex(8)}.link")
    try:
        beside.hardlink_to(source)
    except OSError:
        with source.open("rb") as reader, new_file(target) as writer:
            _copy_bytes(reader, writer)
        return
    try:
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)  # a rename between two links of one file does nothing


def place_verified(source: Path, target: Path, sha256: str, *, link: bool = False, staging: Path | None = None) -> None:
    """Put the bytes of a file at a second place, if they have this hash: a copy (shared where the file system can), or
    a hard link of a file that nobody changes: never of one that somebody else could."""
    if link:
        with plain_file(source, follow=True) as descriptor:
            if _is_ours_alone(os.fstat(descriptor)):
                check_intact(source, sha256, descriptor)
                link_or_copy(source, target)
                if os.path.samestat(os.fstat(descriptor), target.stat()):
                    return
    with (
        plain_file(source, follow=True) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as reader,
        new_file(target, staging=staging) as writer,
    ):
        _copy_bytes(reader, writer)
        _check_hash(writer.fileno(), source, sha256)


def _is_ours_alone(info: os.stat_result) -> bool:
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022


def _check_hash(descriptor: int, source: Path, sha256: str) -> None:
    if hash_file(descriptor) != sha256:
        raise DamagedFileError(source)


def give_to(path: Path | int, owner: os.stat_result) -> None:
    """Give what root makes among the files of a user to that user."""
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def copy_attributes(source: Path | int, target: Path | int) -> None:
    """Copy access lists and other extended attributes, as far as the file system and our rights allow.

    This comes after a new owner, who takes capabilities away, and before the mode, which may forbid to set them.
    """
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        return
    for name in sorted(set(names) - _OF_BYTES, key=lambda name: name == _ACCESS_LIST):  # it may forbid the others
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_bytes(reader: IO[bytes], writer: IO[bytes]) -> None:
    size = os.fstat(reader.fileno()).st_size
    done = 0
    try:
        while done < size and (step := os.copy_file_range(reader.fileno(), writer.fileno(), size - done)):
            done += step
    except OSError as error:
        if error.errno in _FULL:
            raise
    if done < size:
        reader.seek(done)
        writer.seek(done)
        shutil.copyfileobj(reader, writer, 1 << 20)
    writer.flush()


def _temporary_file(folder: Path) -> BinaryIO:
    while True:
        path = folder / f"{_TEMPORARY}{secrets.token_hex(8)}{_FILE}"
        file = path.open("x+b")
        if _claim(file.fileno(), path):
            return file
        file.close()


# Locks


@contextmanager
def locked(
    path: Path, what: str, *, timeout: float | None = None, hint: str = "Wait until it has finished."
) -> Iterator[None]:
    """Hold a lock file, after waiting `timeout` seconds for it (None: as long as it takes).

    `what` is what an error says is in use. The kernel frees the lock when its process ends, however it ends; the
    file itself may stay or be removed by who holds it.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    while True:
        descriptor = _open_lock(path)
        try:
            if not _flock(descriptor, give_up):
                holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "an unknown process"
                raise EnvironmentProblem(f"{what} is in use by another torchtailor ({holder}).", hint)
            if _still_at(descriptor, path):  # else the last holder removed it, and a new one is locked by others
                _name_holder(descriptor, f"process {os.getpid()} on {platform.node()}")
                try:
                    yield
                finally:
                    _name_holder(descriptor, "")
                return
        finally:
            os.close(descriptor)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """One process at a time changes a folder that belongs to other tools too: so without a lock file in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name_holder(descriptor: int, holder: str) -> None:
    with suppress(OSError):  # a full disk keeps nobody from locking
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _open_lock(path: Path) -> int:
    while True:
        with suppress(FileExistsError):  # exist_ok fails where the folder is removed meanwhile
            path.parent.mkdir(parents=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:  # the last holder has just removed the folder
            for folder in path.parents:
                if folder.is_symlink() and not folder.exists():
                    raise EnvironmentProblem(
                        f"{folder} is a link to a folder that does not exist.", "Make that folder, or remove the link."
                    ) from None


def _flock(descriptor: int, give_up: float | None) -> bool:
    kind = fcntl.LOCK_EX if give_up is None else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            if give_up is None or time.monotonic() >= give_up:
                return False
            time.sleep(_POLL)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return True
        else:
            return True


def _still_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still is what its name leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# Folders


def is_own_folder(path: Path, *, may_link: bool) -> bool:
    """Whether this is a folder, and no link; `may_link`: or a link that this user or root made."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(status.st_mode):
        return may_link and status.st_uid in (0, os.geteuid()) and path.is_dir()
    return stat.S_ISDIR(status.st_mode)


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """A folder for unfinished files on the disk of the output; gone afterwards, or, if we are killed, when the next
    process stages something there."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    folder, lock = _new_staging(parent)
    try:
        yield folder
    finally:
        remove_locked(folder)
        os.close(lock)


def staged_for(path: Path) -> Path:
    """The folder, known to the user, beside whose files something is staged."""
    staging = [one for one in path.parents if one.name.startswith(_TEMPORARY)]
    return staging[-1].parent if staging else path.parent


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Make a folder beside its place; it is put there, instead of an older one, when the block ends well."""
    with staging_folder(place.parent) as staging:
        new = staging / place.name
        new.mkdir()
        yield new
        replace_folder(new, place)


def replace_folder(new: Path, place: Path) -> None:
    """Put a staged folder in its place; a reader finds the old one or the new one, where the kernel can exchange.

    The old one is left in the staging folder, and goes with it.
    """
    check_replaceable(place)
    while True:
        try:
            new.rename(place)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        else:
            return
        if _exchange(new, place):
            return
        with suppress(FileNotFoundError):  # another process was quicker to move it away
            place.rename(Path(tempfile.mkdtemp(dir=new.parent)) / place.name)


def remove_locked(folder: Path) -> None:
    """Remove a folder whose `lock` we hold. The lock goes last: until then nobody else begins to work in the folder,
    and a removal that is killed is recognised and taken up by the next process."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder: their locks are free."""
    for path in parent.glob(f"{_TEMPORARY}*"):
        if path.is_symlink() or (path / _LOCK).is_symlink():
            continue  # none of ours: it would lead to the files of somebody else
        if not path.is_dir() and path.suffix != _FILE:
            continue
        try:
            with (path / _LOCK if path.is_dir() else path).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    remove_locked(path)
                else:
                    path.unlink()
        except FileNotFoundError:
            with suppress(OSError):
                path.rmdir()  # its process was killed before it was locked
        except OSError:  # in use, or not ours
            continue


def _new_staging(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # taken for abandoned
            continue
        if _claim(lock, folder / _LOCK):
            return folder, lock
        os.close(lock)


def is_free(descriptor: int) -> bool:
    """Lock an open file for ourselves; False where another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(descriptor: int, path: Path) -> bool:
    """Lock what we have just made; False where another process took it for abandoned before that."""
    try:
        if not is_free(descriptor):
            return False
    except OSError:  # a file system without locks: nobody can take it for abandoned either
        return True
    return _still_at(descriptor, path)


def _exchange(first: Path, second: Path) -> bool:
    """Give two folders each other's name in one step; False where kernel or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.ENOENT):
        return False
    raise OSError(code, os.strerror(code), str(second))
