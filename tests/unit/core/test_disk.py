"""How files are written, locked, hashed and put in place, by one process and by several at once."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import os
import re
import signal
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import not_hanging
from torchtailor.core import disk
from torchtailor.core.disk import (
    DamagedFileError,
    _intact,
    cache_folder,
    check_intact,
    copy_file,
    disk_errors,
    existing_parent,
    hash_file,
    link_or_copy,
    locked,
    new_file,
    new_folder,
    remove_abandoned,
    remove_locked,
    replace_folder,
    sharing_intact,
    staging_folder,
    state_folder,
    work_folder,
    write_atomically,
    write_output,
)
from torchtailor.core.errors import EnvironmentProblem, UsageError

FORK = multiprocessing.get_context("fork")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_children(number: int, action: Callable[[], None]) -> None:
    """Run the action in several processes that begin together; each must end well."""
    barrier = FORK.Barrier(number)

    def run() -> None:
        barrier.wait()
        action()

    children = [FORK.Process(target=run) for _ in range(number)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * number


def killed_in(block: Callable[[], None]) -> None:
    """Run the block in a process that is killed by it."""
    child = os.fork()
    if child == 0:
        try:
            block()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# Folders


def test_folders_follow_their_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CACHE", "STATE", "WORK"):
        monkeypatch.delenv(f"TORCHTAILOR_{name}", raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == tmp_path / ".cache" / "torchtailor"
    assert state_folder() == tmp_path / ".local" / "state" / "torchtailor"
    assert work_folder() == tmp_path / ".cache" / "torchtailor" / "source"
    monkeypatch.setenv("TORCHTAILOR_CACHE", "~/c")
    monkeypatch.setenv("TORCHTAILOR_STATE", "/s")
    assert (cache_folder(), state_folder(), work_folder()) == (tmp_path / "c", Path("/s"), tmp_path / "c" / "source")
    monkeypatch.setenv("TORCHTAILOR_WORK", "/w")
    assert work_folder() == Path("/w")


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert existing_parent(tmp_path) == tmp_path
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
    assert existing_parent(tmp_path / "file" / "b") == tmp_path


# Errors


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full: /out has no room"),
        (errno.EDQUOT, "The disk is full: /out has no room"),
        (errno.EROFS, "/out/x is on a read-only disk"),
        (errno.EACCES, "/out/x cannot be written: permission denied"),
        (errno.ENOTDIR, "/out/x cannot be written: Not a directory"),
    ],
)
def test_errors_of_the_disk_are_sentences(number: int, words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words) as caught, disk_errors(Path("/out"), unchanged="All is well."):
        raise OSError(number, os.strerror(number), "/out/x")
    assert caught.value.hint.startswith("All is well.")


def test_an_error_names_the_folder_and_not_what_is_staged_in_it() -> None:
    for staged in ("/out/.torchtailor-abc", "/out/.torchtailor-abc/tree/lib/.torchtailor-def.tmp"):
        with (
            pytest.raises(EnvironmentProblem, match=r"^/out cannot be written: permission denied"),
            disk_errors(Path()),
        ):
            raise PermissionError(errno.EACCES, "no", staged)


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").touch()
    with pytest.raises(EnvironmentProblem, match=r"in-the-way/file cannot be written"), disk_errors(tmp_path):
        write_atomically(tmp_path / "in-the-way" / "file", b"")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match=r"/folder cannot be written"):
        write_output(tmp_path / "folder", b"")
    assert names(tmp_path) == ["folder", "in-the-way"]


# Hashes


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 1_000_000])
def test_hashes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert hash_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()
    assert hash_file(tmp_path / "file", "md5") == hashlib.md5(data).hexdigest()
    with (tmp_path / "file").open("rb") as file:
        file.seek(size // 2)
        assert hash_file(file.fileno()) == hashlib.sha256(data).hexdigest()
        assert file.tell() == size // 2


# Files


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), new_file(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        _ = 1 // 0
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_modes_and_staging(tmp_path: Path) -> None:
    staging, path = tmp_path / "staging", tmp_path / "out" / "file"
    staging.mkdir()
    path.parent.mkdir()
    umask = os.umask(0o027)
    try:
        with new_file(path, staging=staging) as file:
            assert names(path.parent) == []
            assert len(names(staging)) == 1
            file.write(b"x")
        assert path.stat().st_mode & 0o777 == 0o640
        write_atomically(path, b"y", mode=0o604)
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(umask)
    assert names(staging) == []


def test_an_output_brings_its_folder(tmp_path: Path) -> None:
    write_output(tmp_path / "a" / "b" / "file", b"x")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"x"


def test_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3_000_000))
    source.chmod(0o755)
    os.utime(source, (1_000_000_000, 1_000_000_000))
    copy_file(source, tmp_path / "copy")
    link_or_copy(source, tmp_path / "link")
    link_or_copy(source, tmp_path / "link")
    assert (tmp_path / "link").samefile(source)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copy_file(source, tmp_path / "slow")
    link_or_copy(source, tmp_path / "far")
    for name in ("copy", "slow", "far"):
        assert (tmp_path / name).read_bytes() == source.read_bytes()
        assert not (tmp_path / name).samefile(source)
    for name in ("copy", "slow"):
        assert (tmp_path / name).stat().st_mode == source.stat().st_mode
        assert (tmp_path / name).stat().st_mtime == 1_000_000_000
    assert names(tmp_path) == ["copy", "far", "link", "slow", "source"]


# Locks


@pytest.mark.parametrize("place", ["lock", "deeper/lock"])
def test_a_link_to_nothing_in_the_way_of_a_lock_is_said(tmp_path: Path, place: str) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "not mounted")
    lock = locked(tmp_path / "cache" / place, "The thing", timeout=0)
    with pytest.raises(EnvironmentProblem, match="cache is a link to a folder that does not exist"), lock:
        pytest.fail("locked")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("timeout", [None, 0])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, timeout: float | None
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "The thing", timeout=timeout):
        pass


def test_a_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    second = locked(path, "The thing", timeout=0, hint="Go away.")
    with locked(path, "The thing"), pytest.raises(EnvironmentProblem) as caught, second:
        pytest.fail("locked twice")
    assert f"The thing is in use by another torchtailor (process {os.getpid()} on " in caught.value.message
    assert caught.value.hint == "Go away."
    assert path.read_bytes() == b""
    with locked(path, "The thing", timeout=0):
        pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    """Several processes count in one file; without the lock they would lose some."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(50):
            with locked(tmp_path / "lock", "The counter"):
                counter.write_text(str(int(counter.read_text()) + 1))

    in_children(4, count)
    assert counter.read_text() == "200"


def test_a_lock_whose_file_is_removed_by_its_holder_still_excludes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(50):
            with locked(tmp_path / "gone" / "lock", "The counter", timeout=60):
                counter.write_text(str(int(counter.read_text()) + 1))
                (tmp_path / "gone" / "file").touch()
                remove_locked(tmp_path / "gone")

    in_children(4, count)
    assert counter.read_text() == "200"


def test_a_killed_holder_frees_its_lock(tmp_path: Path) -> None:
    def hold() -> None:
        with locked(tmp_path / "lock", "The thing"):
            die()

    killed_in(hold)
    with locked(tmp_path / "lock", "The thing", timeout=0):
        pass


# Staging


def test_a_staging_folder_is_gone_afterwards(tmp_path: Path) -> None:
    with staging_folder(tmp_path / "new") as staging:
        (staging / "deep" / "er").mkdir(parents=True)
        (staging / "file").touch()
        assert staging.parent == tmp_path / "new"
    assert names(tmp_path / "new") == []
    with pytest.raises(ZeroDivisionError), staging_folder(tmp_path / "new"):
        _ = 1 // 0
    assert names(tmp_path / "new") == []


def test_what_killed_processes_left_goes_with_the_next(tmp_path: Path) -> None:
    def stage() -> None:
        with staging_folder(tmp_path) as staging:
            (staging / "half").mkdir()
            die()

    def write() -> None:
        with new_file(tmp_path / "file") as file:
            file.write(b"half")
            die()

    killed_in(stage)
    killed_in(write)
    (tmp_path / ".torchtailor-unlocked").mkdir()  # killed before it was locked
    (tmp_path / ".torchtailor-mine").touch()  # not one of ours
    (tmp_path / ".torchtailor-notes").mkdir()
    (tmp_path / ".torchtailor-notes" / "file").touch()
    assert len(names(tmp_path)) == 5
    with staging_folder(tmp_path) as staging:
        assert names(tmp_path) == sorted([staging.name, ".torchtailor-mine", ".torchtailor-notes"])


def test_what_is_in_use_elsewhere_stays(tmp_path: Path) -> None:
    """As seen from another container, whose process numbers mean nothing here."""
    with staging_folder(tmp_path) as staging, new_file(tmp_path / "file") as file:
        (staging / "half").touch()
        in_children(2, lambda: remove_abandoned(tmp_path))
        assert names(staging) == ["half", "lock"]
        file.write(b"whole")
    assert names(tmp_path) == ["file"]


def test_many_stage_and_clean_at_once(tmp_path: Path) -> None:
    def stage() -> None:
        for number in range(60):
            with staging_folder(tmp_path) as staging:
                (staging / "half").write_bytes(b"x")
                write_atomically(tmp_path / "file", str(number).encode())
                assert (staging / "half").read_bytes() == b"x"

    in_children(4, stage)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_replaces_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(disk, "_exchange", lambda first, second: False)
    place = tmp_path / "place"
    for text in ("first", "second"):
        with new_folder(place) as new:
            (new / "file").write_text(text)
        assert (place / "file").read_text() == text
    with pytest.raises(ZeroDivisionError), new_folder(place) as new:
        (new / "file").write_text("third")
        _ = 1 // 0
    assert (place / "file").read_text() == "second"
    assert names(tmp_path) == ["place"]
    assert place.stat().st_mode & 0o777 == 0o777 & ~_umask()


@pytest.mark.parametrize("exchange", [True, False])
def test_many_replace_one_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(disk, "_exchange", lambda first, second: False)

    def replace() -> None:
        for _ in range(40):
            with staging_folder(tmp_path) as staging:
                new = staging / "place"
                new.mkdir()
                (new / "one").write_text("x")
                (new / "two").write_text("x")
                replace_folder(new, tmp_path / "place")

    in_children(3, replace)
    assert names(tmp_path) == ["place"]
    assert names(tmp_path / "place") == ["one", "two"]


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with staging_folder(tmp_path) as staging:
        (staging / "file").touch()
        remove_abandoned(tmp_path)
        assert (staging / "file").exists()
        write_atomically(tmp_path / "file", b"x")
    assert names(tmp_path) == ["file"]


def test_nobody_else_knows_how() -> None:
    """Other modules write, lock and hash files and find our folders by what is here."""
    source = Path(disk.__file__).parents[1]
    own = re.compile(
        r"\bfcntl\b|file_digest|mkstemp|mkdtemp|os\.replace\(|user_(cache|state)_|TORCHTAILOR_(CACHE|STATE|WORK)"
    )
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if own.search(path.read_text())}
    alone = "building/farm/fingerprint.py"  # runs on workers that may lack torchtailor, and uses only Python itself
    assert found == {"core/disk.py", alone}


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


# What is not a file


def special(folder: Path, kind: str) -> Path:
    """A pipe or socket, or a device where we may make one."""
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "link":
        path.symlink_to("/dev/null")
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    return path


@pytest.mark.parametrize("kind", ["pipe", "socket", "link", "device"])
def test_nothing_is_put_in_the_place_of_a_device(tmp_path: Path, kind: str) -> None:
    path = special(tmp_path, kind)
    before = path.lstat()
    source = tmp_path / "source"
    source.write_bytes(b"bytes")
    (tmp_path / "folder").mkdir()

    def make_folder() -> None:
        with new_folder(path):
            pass

    writes: list[Callable[[], None]] = [
        lambda: write_atomically(path, b"bytes"),
        lambda: copy_file(source, path),
        lambda: link_or_copy(source, path),
        lambda: replace_folder(tmp_path / "folder", path),
        make_folder,
    ]
    for write in writes:
        with pytest.raises(UsageError, match="is not a file"):
            write()
    assert os.path.samestat(path.lstat(), before)
    assert names(tmp_path) == sorted([kind, "folder", "source"])


@pytest.mark.parametrize("kind", ["link", "device"])
def test_an_output_for_a_device_is_written_to_it(tmp_path: Path, kind: str) -> None:
    path = special(tmp_path, kind)
    before = path.lstat()
    write_output(path, b"report")
    assert os.path.samestat(path.lstat(), before)


def test_an_output_for_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with not_hanging("an output"), pytest.raises(EnvironmentProblem, match="cannot be written: No such device"):
        write_output(path, b"report")
    assert path.is_fifo()


def test_an_output_for_a_pipe_goes_through_it(tmp_path: Path) -> None:
    path = special(tmp_path, "pipe")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(path, b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)


def test_the_names_of_the_kernel_are_never_replaced(tmp_path: Path) -> None:
    """/dev/stdout is a link, and may lead to a plain file."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        number = file.fileno()
        write_output(Path(f"/proc/self/fd/{number}"), b"report")
        with pytest.raises(UsageError, match="is not a file"):
            write_atomically(Path(f"/proc/self/fd/{number}"), b"report")
    assert log.read_bytes() == b"report"


def test_what_was_found_intact_is_read_once_also_by_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under all names; a file that changed, even to the same size, is read again."""
    file, other, listed = tmp_path / "a.whl", tmp_path / "b.whl", tmp_path / "intact"
    file.write_bytes(b"a wheel")
    good = hashlib.sha256(b"a wheel").hexdigest()
    other.hardlink_to(file)
    reads: list[int] = []

    def counted(descriptor: int | Path, algorithm: str = "sha256") -> str:
        reads.append(1)
        return hash_file(descriptor, algorithm)

    monkeypatch.setattr("torchtailor.core.disk.hash_file", counted)
    with sharing_intact(listed):
        check_intact(file, good)
        check_intact(other, good)
    assert len(reads) == 1

    monkeypatch.setattr("torchtailor.core.disk._intact", type(_intact)())  # as in another process
    with sharing_intact(listed):
        check_intact(other, good)
        assert len(reads) == 1
        with pytest.raises(DamagedFileError):
            check_intact(other, "0" * 64)
        other.write_bytes(b"A wheel")
        os.utime(other, ns=(1, 1))
        with pytest.raises(DamagedFileError):
            check_intact(file, good)
    with pytest.raises(DamagedFileError):
        check_intact(file, good)


def test_a_list_of_intact_files_that_several_write_at_once(tmp_path: Path) -> None:
    def write(first: int) -> None:
        one = type(_intact)()
        one.share(tmp_path / "intact")
        for n in range(first, 500):
            one.add((n, n), f"{n:064}")

    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(write, (0, 100, 200, 300))]) == 4
    new = type(_intact)()
    new.share(tmp_path / "intact")
    assert all(new.has((n, n), f"{n:064}") for n in range(500))
    assert not new.has((1, 1), "0" * 64)


def test_a_full_disk_is_named_by_a_folder_that_the_user_knows(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem) as caught, disk_errors(tmp_path / ".torchtailor-abc"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert f"The disk is full: {tmp_path} has no room" in caught.value.message
