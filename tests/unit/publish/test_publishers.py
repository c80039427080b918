"""Several publishers at once: one transaction each, in a folder by its lock, in an object store by turns."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.torture.publishers import VARIANTS
from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop
from torchtailor.core import store as stores
from torchtailor.core.store import FolderStore, RemoteStore
from torchtailor.publish.lifecycle import list_index, publish_recorded

__all__ = ["catalog", "hurry", "site", "workshop"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_TURN", 0.01)


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_each_publisher_has_a_generation(
    kind: str,
    workshop: Workshop,
    tmp_path: Path,
    quick: None,
) -> None:
    """All begin together, and none has seen what the others add."""
    dists = []
    for name in VARIANTS:
        workshop.out = tmp_path / name
        workshop.build(name)
        dists.append(workshop.out)
    barrier = threading.Barrier(len(dists))

    def opened() -> FolderStore | RemoteStore:
        return FolderStore(tmp_path / "public") if kind == "folder" else RemoteStore(f"memory://{tmp_path.name}")

    def publish(dist: Path) -> None:
        barrier.wait()
        publish_recorded(dist, opened())

    threads = [threading.Thread(target=publish, args=(dist,)) for dist in dists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listing = list_index(opened())
    assert len(listing.pages) == len({one.action for one in listing.generations}) == 3
    assert listing.generations[-1].pages == listing.pages


def test_a_file_is_created_once(tmp_path: Path) -> None:
    for store in (FolderStore(tmp_path), RemoteStore(f"memory://{tmp_path.name}")):
        assert store.create(b"first", "a/b") and not store.create(b"second", "a/b")
        assert store.read("a/b") == b"first"


def test_turns_do_not_overlap_and_old_ones_go(tmp_path: Path, quick: None) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with RemoteStore(f"memory://{tmp_path.name}").lock():
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    left = [*RemoteStore(f"memory://{tmp_path.name}").files(".turns")]
    assert len(left) <= stores._OLD_TURNS + 1 and left[-1].path == ".turns/000040"


def test_a_publisher_that_was_killed_is_passed_over_and_one_that_lives_is_not(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_SILENT", 1.0)  # on a busy machine a beat may come late
    monkeypatch.setattr(stores, "_BEAT", 0.02)
    url = f"memory://{tmp_path.name}"
    RemoteStore(url).put_bytes(b"of a process that is gone\n", ".turns/000007")
    began = time.monotonic()
    with RemoteStore(url).lock():
        assert time.monotonic() - began > 1.0
        done = threading.Event()

        def wait() -> None:
            with RemoteStore(url).lock():
                done.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not done.wait(1.5)  # it gives signs of life
    waiting.join()
    assert done.is_set()
