"""The cache as a whole: everything that is kept is seen, counted and pruned; several processes share it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.unit.core.test_disk import in_children, killed_in, names
from tests.unit.gpucode.builders import FIXTURES
from tests.unit.surgery.checks import options
from torchtailor.cli import main
from torchtailor.code.hostcode.cache import host_code
from torchtailor.fetch.cache import Cache, EntryKind
from torchtailor.surgery.library import tailor_library

HOST_CODE = Path(__file__).parents[2] / "fixtures" / "hostcode" / "x86_64" / "startup_wide.so"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, moved; nothing may be kept where it was before."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(tmp_path: Path) -> None:
    """Something of every kind."""
    cache = Cache()
    part = cache.partial("one")
    part.write_bytes(b"wheel")
    cache.adopt(part, "a" * 64, "a.whl")
    cache.partial("two").write_bytes(b"half")
    cache.write_note("pages", "x", b"page")
    cache.write_note("facts", "y", b"fact")
    with cache.staging() as staging:
        (staging / "made").mkdir()
        (staging / "made" / "b.whl").write_bytes(b"made")
        cache.put_made("b" * 64, staging / "made", Path.is_dir)
    record = cache.root / "farm" / "records" / "aa" / ("a" * 64)
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    tailor_library(FIXTURES / "raw.so", tmp_path / "out.so", options("8.0,9.0", recompress=True, level=1))
    host_code(HOST_CODE)


def test_everything_follows_the_variable_and_is_seen_and_pruned(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    assert not (tmp_path / "home").exists()
    assert main(["cache", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["entries"]
    assert sorted(row["kind"] for row in rows) == sorted(kind.value for kind in EntryKind)
    kept = [path for path in root.rglob("*") if path.is_file() and path.name not in (".used", "CACHEDIR.TAG")]
    assert sum(row["size"] for row in rows) == sum(path.stat().st_size for path in kept if path.suffix != ".lock")
    assert main(["cache", "prune", "--all"]) == 0
    assert f"{len(EntryKind)} entries" in capsys.readouterr().out
    left = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    assert sorted(left) == ["CACHEDIR.TAG", "made.lock"]


def test_small_files_are_pruned_by_their_own_age(root: Path, tmp_path: Path) -> None:
    fill(tmp_path)
    images = sorted(path for path in (root / "images").rglob("*") if path.is_file())
    assert len(images) > 1
    old = time.time() - 1000
    os.utime(images[0], (old, old))
    gone = Cache().prune(older_than=500)
    assert [(entry.kind, entry.files) for entry in gone] == [(EntryKind.IMAGES, (images[0],))]
    assert not images[0].exists() and images[1].exists()


def test_what_is_read_again_counts_as_used(root: Path, tmp_path: Path) -> None:
    fill(tmp_path)
    old = time.time() - 1000
    kinds = {EntryKind.IMAGES: root / "images", EntryKind.HOST_CODE: root / "hostcode"}
    for folder in kinds.values():
        for path in folder.rglob("*"):
            os.utime(path, (old, old))
    tailor_library(FIXTURES / "raw.so", tmp_path / "out.so", options("8.0,9.0", recompress=True, level=1))
    host_code(HOST_CODE)
    recent = {entry.kind for entry in Cache().entries() if entry.used > old + 1}
    assert set(kinds) <= recent


def test_pruning_takes_what_killed_processes_left(root: Path) -> None:
    cache = Cache()

    def make() -> None:
        with cache.staging() as staging:
            (staging / "half").write_bytes(b"x")
            os.kill(os.getpid(), 9)

    killed_in(make)
    with cache.staging() as staging:
        cache.prune(older_than=None)
        assert staging.is_dir()
    assert names(root) == ["CACHEDIR.TAG", "made.lock"]


def test_many_put_one_result_in_place(tmp_path: Path) -> None:
    """Whoever is first wins; a complete result is never taken away, a damaged one is replaced."""
    cache, key = Cache(tmp_path), "c" * 64

    def complete(folder: Path) -> bool:
        return (folder / "one").is_file() and (folder / "two").is_file()

    def put() -> None:
        for _ in range(30):
            with cache.staging() as staging:
                new = staging / "new"
                new.mkdir()
                (new / "one").touch()
                (new / "two").touch()
                with cache.put_made(key, new, complete).joinpath("one").open("rb"):
                    assert complete(cache.made(key))

    cache.made(key).mkdir(parents=True)
    (cache.made(key) / "one").touch()  # damaged
    in_children(4, put)
    assert names(cache.made(key)) == ["one", "two"]
    before = cache.made(key).stat().st_ino
    in_children(3, put)
    assert cache.made(key).stat().st_ino == before
    assert names(tmp_path) == ["CACHEDIR.TAG", "made", "made.lock"]
