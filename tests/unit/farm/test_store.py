"""The store: whole or not at all, checked when read, patient with what fails for a while."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtailor.building.farm.records import FarmFile, JobRecord
from torchtailor.building.farm.store import FarmStore, MissingOutputError, open_farm_store, unused_files
from torchtailor.cli import main
from torchtailor.core.disk import DamagedFileError
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError, UsageError
from torchtailor.core.store import FolderStore, RemoteStore, check_store, store_folder
from torchtailor.core.trust import Limit, read_limited

KEY = hashlib.sha256(b"a job").hexdigest()


def made(tmp_path: Path, content: bytes = b"content", name: str = "torch.whl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FarmStore:
    """A folder, and what fsspec makes of a URL."""
    if request.param == "folder":
        return open_farm_store(str(tmp_path / "store"))
    return open_farm_store(f"memory://{tmp_path.name}")


def test_what_is_put_is_got_with_its_hash(store: FarmStore, tmp_path: Path) -> None:
    file = store.put(made(tmp_path), "wheels/torch.whl")
    assert (file.path, file.size) == ("wheels/torch.whl", 7)
    assert store.record(KEY) is None and store.finished([KEY]) == frozenset()
    store.finish(KEY, JobRecord("fetch", (file,), {"n": 1}))
    assert store.finished([KEY, "ab" * 32]) == {KEY}
    record = store.need(KEY)
    assert record.file("wheels/torch.whl") == file and record.facts == {"n": 1}
    store.get(KEY, file, tmp_path / "out" / "torch.whl")
    assert (tmp_path / "out" / "torch.whl").read_bytes() == b"content"


def test_the_first_of_two_workers_wins(store: FarmStore, tmp_path: Path) -> None:
    first = JobRecord("link", (store.put(made(tmp_path, b"one"), "a"),))
    store.finish(KEY, first)
    store.finish(KEY, JobRecord("link", (store.put(made(tmp_path, b"two"), "a"),)))
    assert store.need(KEY).files == first.files


def test_an_output_that_is_missing_has_a_name(store: FarmStore) -> None:
    with pytest.raises(MissingOutputError) as caught:
        store.need(KEY)
    assert caught.value.key == KEY


def test_a_damaged_file_is_never_given_out_and_its_output_forgotten(tmp_path: Path) -> None:
    store = open_farm_store(str(tmp_path / "store"))
    file = store.put(made(tmp_path), "torch.whl")
    store.finish(KEY, JobRecord("fetch", (file,)))
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    blob.chmod(0o644)
    blob.write_bytes(b"CONTENT")
    with pytest.raises(MissingOutputError):
        store.get(KEY, file, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not blob.exists()
    assert store.record(KEY) is None


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    store = open_farm_store(str(tmp_path / "store"))
    store.finish(KEY, JobRecord("fetch", ()))
    path = tmp_path / "store" / "records" / KEY[:2] / KEY
    for text in ("", "{", '{"kind": 1}', '{"kind": "x", "files": [{"path": "../up", "sha256": "", "size": 1}]}'):
        path.write_text(text)
        assert store.record(KEY) is None
        assert not path.exists()
        store.finish(KEY, JobRecord("fetch", ()))


def test_a_folder_in_the_place_of_a_file_is_damage_too(tmp_path: Path) -> None:
    store = open_farm_store(str(tmp_path / "store"))
    file = store.put(made(tmp_path), "torch.whl")
    store.finish(KEY, JobRecord("fetch", (file,)))
    assert store.lost([KEY, "ab" * 32]) == {"ab" * 32}
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    record = tmp_path / "store" / "records" / KEY[:2] / KEY
    for path in (record, blob):
        path.unlink()
        (path / "inside").mkdir(parents=True)
        assert store.lost([KEY]) == {KEY}
        if path is blob:
            with pytest.raises(MissingOutputError):
                store.get(KEY, file, tmp_path / "out")
        assert store.record(KEY) is None and not path.exists()
        (path / "inside").mkdir(parents=True)
        store.put(made(tmp_path), "torch.whl")
        store.finish(KEY, JobRecord("fetch", (file,)))
        assert store.lost([KEY]) == frozenset()


def test_read_only_files_are_linked_and_others_copied(tmp_path: Path) -> None:
    store = open_farm_store(str(tmp_path / "store"))
    mutable, fixed = made(tmp_path, b"one", "a"), made(tmp_path, b"two", "b")
    fixed.chmod(0o444)
    for path, same in ((mutable, False), (fixed, True)):
        file = store.put(path, path.name)
        blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
        assert blob.samefile(path) is same
        assert blob.stat().st_mode & 0o222 == 0
        store.get(KEY, file, tmp_path / "own" / path.name, link=False)
        assert (tmp_path / "own" / path.name).stat().st_mode & 0o200  # what the user gets may be changed


@pytest.mark.parametrize("whose", ["ours", "of another user"])
def test_what_somebody_else_could_change_later_is_copied(whose: str, tmp_path: Path) -> None:
    """The right bytes in the store, as a file that a stranger has put there: a link to it would stay the stranger's."""
    if whose != "ours" and os.geteuid() != 0:
        pytest.skip("needs root, to make a file of another user")
    store = open_farm_store(str(tmp_path / "store"))
    source = made(tmp_path, b"a wheel", "torch.whl")
    source.chmod(0o444)
    file = store.put(source, source.name)
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    blob.unlink()
    blob.write_bytes(b"a wheel")
    blob.chmod(0o666 if whose == "ours" else 0o444)
    if whose != "ours":
        os.chown(blob, 65534, 65534)
    target = tmp_path / "dist" / "torch.whl"
    store.get(KEY, file, target)
    assert not target.samefile(blob) and target.stat().st_uid == os.geteuid()
    blob.chmod(0o666)
    blob.write_bytes(b"another")
    assert target.read_bytes() == b"a wheel"


def test_tokens_of_killed_runs_go_after_a_day(store: FarmStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_text("tokens/old", "x")
    store.check_writable()
    assert store.read_text("tokens/old") == "x"  # perhaps of a run that goes on
    now = time.time()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now + 1e6)  # a clock that is wrong, and not the store's
        store.check_writable()
    assert store.read_text("tokens/old") == "x"
    monkeypatch.setattr("torchtailor.building.farm.store._DAY", 0.01)
    time.sleep(0.05)
    store.check_writable()
    assert store.read_text("tokens/old") is None


def test_a_colon_alone_makes_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_store("my:folder", "--store")
    open_farm_store("my:folder").put_text("tokens/a", "x")
    assert (tmp_path / "my:folder" / "tokens" / "a").is_file()


def test_keys_that_lead_out_of_the_store_are_refused(store: FarmStore) -> None:
    for key in ("../../etc/passwd", "", "AB" * 32, "ab" * 31):
        with pytest.raises(BadInputError):
            store.record(key)


def stumbling(method: Any, times: int) -> Any:
    """The same method, which times out a few times before it works."""
    left = [times]

    def stumble(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        return method(*args, **options)

    return stumble


def test_a_store_that_times_out_is_asked_again_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for times in (1, 3):
        bucket = RemoteStore(f"memory://{tmp_path.name}{times}", pauses=(0, 0, 0))
        store, system = FarmStore(bucket), type(bucket._system)
        for name in ("put_file", "pipe_file", "cat_file"):
            monkeypatch.setattr(system, name, stumbling(getattr(system, name), times))
        store.put(made(tmp_path), "a")
        store.finish(KEY, JobRecord("fetch", ()))
        assert store.need(KEY)
        monkeypatch.undo()
    gone = RemoteStore(f"memory://{tmp_path.name}", pauses=(0, 0, 0))
    monkeypatch.setattr(type(gone._system), "put_file", stumbling(None, 99))
    with pytest.raises(NetworkError, match="timed out"):
        FarmStore(gone).put(made(tmp_path), "a")


def test_a_network_disk_that_stalls_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FolderStore(tmp_path, pauses=(0, 0, 0))
    folder.put_bytes(b"content", "a")
    monkeypatch.setattr("torchtailor.core.store.read_limited", stumbling(read_limited, 3))
    assert folder.read("a") == b"content"
    monkeypatch.setattr("torchtailor.core.store.read_limited", stumbling(read_limited, 99))
    with pytest.raises(NetworkError, match="timed out"):
        folder.read("a")


def test_a_damaged_file_is_no_reason_not_to_store_it_again(tmp_path: Path) -> None:
    store = open_farm_store(str(tmp_path / "store"))
    file = store.put(made(tmp_path), "torch.whl")
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    blob.chmod(0o644)
    blob.write_bytes(b"CONTENT")
    assert store.put(made(tmp_path), "torch.whl") == file
    assert blob.read_bytes() == b"content"


def test_what_is_no_plain_file_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a pipe that nobody writes to, a socket: none is followed, and none is waited for."""
    store = open_farm_store(str(tmp_path / "store"))
    file = store.put(made(tmp_path), "torch.whl")
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(blob.parent)  # a long path is none of a socket
    kinds: tuple[Callable[[], None], ...] = (
        lambda: blob.symlink_to(tmp_path / "torch.whl"),
        lambda: os.mkfifo(blob),
        lambda: listener.bind(blob.name),
    )
    for make in kinds:
        store.finish(KEY, JobRecord("fetch", (file,)))
        blob.unlink()
        make()
        assert store.lost([KEY]) == {KEY}
        with pytest.raises(MissingOutputError):
            store.get(KEY, file, tmp_path / "out")
        assert not blob.exists()
        store.put(made(tmp_path), "torch.whl")
    listener.close()


class Few:
    """A hash of no more than so many bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def update(self, piece: bytes) -> None:
        self.left -= len(piece)
        assert self.left >= 0

    def hexdigest(self) -> str:
        return "0" * 64


FOLDERS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_bytes(b"x"),
    "pipe": os.mkfifo,
    "nowhere": lambda path: path.symlink_to("nowhere"),
    "itself": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_is_no_folder_is_damage_too(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    file = made(tmp_path)
    for depth in ("*", "*/*"):
        store = open_farm_store(str(root))
        store.finish(KEY, JobRecord("fetch", (store.put(file, "torch.whl"),)))
        store.put_text("tokens/one", "x")
        for folder in [*root.glob(depth)]:
            if folder.is_dir():
                shutil.rmtree(folder)
                FOLDERS[kind](folder)
        assert store.record(KEY) is None and store.finished([KEY]) == frozenset() and store.lost([KEY]) == {KEY}
        store.check_writable()
        store.finish(KEY, JobRecord("fetch", (store.put(file, "torch.whl"),)))
        store.get(KEY, store.need(KEY).files[0], tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"content"


def test_nothing_outside_of_a_store_is_written_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to it has put links there, to folders of who uses it."""
    monkeypatch.setattr("torchtailor.building.farm.store._DAY", 0.01)
    root, outside = tmp_path / "store", tmp_path / "letters"
    outside.mkdir()
    (outside / "old").write_text("a letter")
    time.sleep(0.05)
    store = open_farm_store(str(root))
    file = FarmFile("torch.whl", hashlib.sha256(b"content").hexdigest(), 7)
    for place in ("tokens", "blobs", "records", f"blobs/{file.sha256[:2]}", f"records/{KEY[:2]}"):
        folder = root / place
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(outside)
        if os.geteuid() == 0:
            os.lchown(folder, 65534, 65534)
        else:
            monkeypatch.setattr("torchtailor.core.store.os.geteuid", lambda: 65534)
        assert store.read_text(f"{place}/old") is None
        store.remove_text(f"{place}/old")
        store.check_writable()
        store.finish(KEY, JobRecord("fetch", (store.put(made(tmp_path), "torch.whl"),)))
        store.forget(KEY)
        assert [path.name for path in outside.iterdir()] == ["old"], place


def test_a_folder_of_a_store_may_be_on_another_disk(tmp_path: Path) -> None:
    """By a link of whoever uses it."""
    root, other = tmp_path / "store", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (root / "blobs").symlink_to(other)
    store = open_farm_store(str(root))
    store.put(made(tmp_path), "torch.whl")
    assert len([*other.glob("*/*")]) == 1 and (root / "blobs").is_symlink()


def test_more_than_is_listed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole of a terabyte in a folder; in a bucket, what would fill the disk or the memory."""
    store = open_farm_store(str(tmp_path / "store"))
    file = store.put(made(tmp_path), "torch.whl")
    store.finish(KEY, JobRecord("fetch", (file,)))
    blob = tmp_path / "store" / "blobs" / file.sha256[:2] / file.sha256
    blob.chmod(0o644)
    os.truncate(blob, 1 << 40)
    assert store.lost([KEY]) == {KEY}
    with pytest.raises(MissingOutputError):
        store.get(KEY, file, tmp_path / "out")

    bucket = RemoteStore(f"memory://{tmp_path.name}", pauses=())
    monkeypatch.setattr("torchtailor.core.store._PIECE", 10)
    bucket.put_bytes(b"content" * 1000, "large")
    with monkeypatch.context() as small:
        small.setattr("hashlib.sha256", lambda: Few(20))
        with pytest.raises(DamagedFileError):
            bucket.fetch_file("large", file.sha256, tmp_path / "large", most=7)

    farm = open_farm_store(f"memory://{tmp_path.name}")
    monkeypatch.setattr(Limit, "PAGE", 1000)
    farm.put_text("tokens/none", "")
    farm.put_text("tokens/large", "x" * 1001)
    farm.put_text(f"records/{KEY[:2]}/{KEY}", " " * 1001)
    assert farm.read_text("tokens/none") == ""
    with pytest.raises(BadInputError, match="is larger than"):
        farm.read_text("tokens/large")
    assert farm.finished([KEY]) == frozenset() and farm.record(KEY) is None


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_farm_store(str(tmp_path / "store"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torchtailor.core.disk._copy_bytes", full)
    with pytest.raises(EnvironmentProblem, match="disk is full"):
        store.put(made(tmp_path), "a")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_errors_of_plug_ins_become_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = RemoteStore(f"memory://{tmp_path.name}", pauses=(0,))

    class OddError(Exception):
        pass

    class NoCredentialsError(Exception):  # as botocore calls it
        pass

    for error, kind in (
        (OddError("endpoint"), NetworkError),
        (PermissionError("403"), EnvironmentProblem),
        (NoCredentialsError("Unable to locate credentials"), EnvironmentProblem),
    ):

        def broken(*_: Any, error: Exception = error, **__: Any) -> bytes:
            raise error

        monkeypatch.setattr(type(bucket._system), "cat_file", broken)
        with pytest.raises(kind, match="cannot be read"):
            bucket.read("records/x")


def test_places_that_cannot_be_stores(tmp_path: Path) -> None:
    file = made(tmp_path)
    with pytest.raises(EnvironmentProblem, match="is not a folder"):
        open_farm_store(str(file))
    with pytest.raises(UsageError, match="--store nonsense://x cannot be written to"):
        open_farm_store("nonsense://x")


def test_a_relative_store_is_the_same_for_workers_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_folder("store") == tmp_path / "store"
    assert store_folder((tmp_path / "s").as_uri()) == tmp_path / "s"
    assert store_folder("s3://bucket/farm") is None


def test_what_is_not_used_is_found_by_its_record(tmp_path: Path) -> None:
    """A blob is as old as the wheel it is a link to; a record that was read is in use, and so is all that it names."""
    store = open_farm_store(str(tmp_path / "store"))
    other = hashlib.sha256(b"another job").hexdigest()
    shared = store.put(made(tmp_path, b"both"), "a")
    store.finish(KEY, JobRecord("cut", (shared, store.put(made(tmp_path, b"one"), "b"))))
    store.finish(other, JobRecord("cut", (shared, store.put(made(tmp_path, b"two"), "b"))))
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (1000, 1000))
    assert store.record(KEY) is not None
    now = time.time() - 60
    gone = unused_files(tmp_path / "store", now)
    assert len(gone) == 2 and gone[0].name == other
    assert gone[1].read_bytes() == b"two"
    assert unused_files(tmp_path / "nowhere", now) == ()


def test_cache_prune_knows_the_farm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    store = open_farm_store(str(tmp_path / "cache" / "farm"))
    store.finish(KEY, JobRecord("cut", (store.put(made(tmp_path, b"x" * 5000), "a"),)))
    assert main(["cache", "list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert entry["kind"] == "farm" and entry["size"] > 5000
    assert main(["cache", "prune", "--older-than", "1d"]) == 0 and store.record(KEY) is not None
    assert main(["cache", "prune", "--all", "--dry-run"]) == 0 and store.record(KEY) is not None
    capsys.readouterr()
    assert main(["cache", "prune", "--all"]) == 0
    assert "1 entry, 5." in capsys.readouterr().out
    assert store.record(KEY) is None and not list((tmp_path / "cache" / "farm" / "blobs").glob("*/*"))
