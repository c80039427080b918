"""Who may say what a job gave: signatures, records that prove themselves, and what a client collects."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.integration.farm import lies
from tests.torture.stores import FORGERIES, StoreFiles, forge
from tests.unit.building.conftest import Workshop
from tests.unit.building.test_build import tree
from tests.unit.farm.test_wheels import NAMES, OPTIONS, Farm
from torchtailor.building.farm.build import FarmBuildResult, failure_of
from torchtailor.building.farm.records import JobRecord, find_secret, need_secret
from torchtailor.building.farm.store import FarmStore, open_farm_store
from torchtailor.building.graph.events import EventKind
from torchtailor.core.disk import remove_abandoned
from torchtailor.core.errors import CheckFailedError, EnvironmentProblem, TorchtailorError
from torchtailor.fetch.pages import content_key

KEY = hashlib.sha256(b"a job").hexdigest()
MINE, OTHER = "mine", "other"


@pytest.fixture
def farm(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farm:
    return Farm(workshop, tmp_path, monkeypatch)


def kinds(done: FarmBuildResult) -> set[str]:
    return {label.split()[0] for label, _ in done.outcomes.values()}


def record_path(store: Path, key: str) -> Path:
    return store / "records" / key[:2] / key


def test_only_who_has_the_secret_says_what_a_job_gave(tmp_path: Path) -> None:
    mine, other, nobody = (open_farm_store(str(tmp_path), secret) for secret in (MINE, OTHER, ""))
    for writer in (other, nobody):
        writer.finish(KEY, JobRecord("cut", (), {"n": 1}))
        assert mine.record(KEY) is None and mine.finished([KEY]) == frozenset() and mine.distrusted([KEY]) == {KEY}
        writer.forget(KEY)
    other.finish(KEY, JobRecord("cut", (), {"n": 1}))
    mine.finish(KEY, JobRecord("cut", (), {"n": 2}))  # in its place
    assert mine.need(KEY).facts == {"n": 2} and mine.distrusted([KEY]) == frozenset()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {**record, "kind": "fetch"},
        lambda record: {**record, "files": []},
        lambda record: {**record, "facts": {"useless": True}},
        lambda record: {**record, "inputs": {}},
        lambda record: {**record, "signature": ""},
        lambda record: {**record, "signature": record["signature"].upper()},
        lambda record: {**record, "signature": "é" * 64},
    ],
)
def test_a_changed_record_counts_as_none(
    change: Callable[[dict[str, object]], dict[str, object]], tmp_path: Path
) -> None:
    store = open_farm_store(str(tmp_path / "store"), MINE)
    (tmp_path / "a").write_bytes(b"a")
    store.finish(KEY, JobRecord("cut", (store.put(tmp_path / "a", "a"),), {"n": 1}, inputs={KEY: KEY}))
    path = record_path(tmp_path / "store", KEY)
    path.write_text(json.dumps(change(json.loads(path.read_bytes()))))
    assert store.record(KEY) is None


def test_a_real_record_under_another_key_counts_as_none(tmp_path: Path) -> None:
    store, another = open_farm_store(str(tmp_path), MINE), hashlib.sha256(b"b").hexdigest()
    store.finish(KEY, JobRecord("cut", ()))
    record_path(tmp_path, another).parent.mkdir(parents=True, exist_ok=True)
    record_path(tmp_path, another).write_bytes(record_path(tmp_path, KEY).read_bytes())
    assert store.record(KEY) is not None and store.record(another) is None


def test_a_wheel_with_the_hash_of_its_index_needs_no_signature(tmp_path: Path) -> None:
    wheel = tmp_path / "torch.whl"
    wheel.write_bytes(b"wheel")
    key = content_key("sha256", hashlib.sha256(b"wheel").hexdigest())
    stranger, mine = open_farm_store(str(tmp_path / "store")), open_farm_store(str(tmp_path / "store"), MINE)
    stranger.finish(key, JobRecord("fetch", (stranger.put(wheel, "torch.whl"),)))
    assert mine.record(key) is not None
    wheel.write_bytes(b"other")
    stranger.forget(key)
    stranger.finish(key, JobRecord("fetch", (stranger.put(wheel, "torch.whl"),)))
    assert mine.record(key) is None


def test_each_store_and_each_user_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    assert find_secret("/a") == "" and not (tmp_path / "state").exists()  # a plan writes nothing
    first = need_secret("/a")
    assert first == need_secret("/a") == find_secret("/a") != need_secret("/b")
    assert (tmp_path / "state/store.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "another"))
    assert need_secret("/a") != first
    shared = tmp_path / "shared.key"
    shared.write_text("k" * 32)
    shared.chmod(0o640)
    assert need_secret("/a", str(shared)) == need_secret("s3://elsewhere", str(shared)) != first
    monkeypatch.setenv("TORCHTAILOR_STORE_KEY", str(shared))
    assert need_secret("/a") == need_secret("/a", str(shared))


@pytest.mark.parametrize(("content", "mode", "said"), [("short", 0o600, "shorter"), ("k" * 32, 0o644, "everybody")])
def test_a_key_that_protects_nothing_is_refused(content: str, mode: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        need_secret("/a", str(path))
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(EnvironmentProblem, match=said):
        need_secret("/a", str(path))


@pytest.mark.parametrize("name", ["fetch record", "cut record", "pack record", "proof"])
def test_foreign_code_does_not_come_out_of_the_store(name: str, farm: Farm) -> None:
    farm.run(farm.plan("sm90-avx512", prove=True))
    wanted = tree(farm.out)
    FORGERIES[name](StoreFiles(farm.store), random.Random(name))
    plan = farm.plan("sm90-avx512", prove=True)
    assert plan.to_do.jobs
    done = farm.run(plan)
    assert not done.failed and tree(farm.out) == wanted
    assert farm.run(farm.plan("sm90-avx512", prove=True)).outcomes == {}


def test_what_is_forged_while_a_build_runs_is_not_collected(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last job and the end of a run, once or again and again."""
    farm.build("sm90-avx512")
    wanted = tree(farm.out)
    plan = farm.plan("sm90-avx512")
    forge(StoreFiles(farm.store), random.Random(1), ("fetch", "cut", "pack"))
    assert not farm.run(plan).failed and tree(farm.out) == wanted


def test_a_worker_that_packs_something_else_is_found_out(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the secret: what it signs is compared with the plan, and nothing of it is put into the output."""
    real = FarmStore.finish

    def lying(store: FarmStore, key: str, record: JobRecord) -> None:
        if record.kind == "pack":
            more = farm.root / "sitecustomize.py"
            more.write_bytes(b"evil")
            record = msgspec.structs.replace(record, files=(*record.files, store.put(more, "wheels/sitecustomize.py")))
        real(store, key, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FarmStore, "finish", lying)
        with pytest.raises(CheckFailedError, match=r"sitecustomize.py does not belong to it"):
            farm.build("sm90-avx512")
        assert not farm.out.exists() or tree(farm.out) == {}
    assert not farm.build("sm90-avx512").failed


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("fetch has other bytes", "says that it is done"),
        ("cut has other bytes", r"'cut nvidia-cublas-cu12 for .*' was done again"),
        ("cut is an earlier one", "is not of nvidia_cublas"),
        pytest.param("fetch is an earlier one", "says that it is done", marks=pytest.mark.slow),
        pytest.param("cut has another hash", "was done again", marks=pytest.mark.slow),
        pytest.param("pack has another hash", "loses what is written to it", marks=pytest.mark.slow),
    ],
)
def test_a_lie_that_is_signed_is_in_no_later_run(
    lie: str, said: str, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker that has the secret has said stays neither in the store nor in the cache of a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lies.LIE, lie)
        patch.setattr(FarmStore, "finish", FarmStore.finish)
        patch.setattr("torchtailor.building.farm.store._LATE", (0.01,))  # what is not believed does not come later
        lies.tell()
        try:
            error = failure_of(farm.build(*NAMES))
        except TorchtailorError as raised:
            error = raised
    assert error and re.search(said, error.message) and error.hint
    assert not farm.out.exists() or tree(farm.out) == {}
    assert not farm.build(*NAMES).failed
    made = tree(farm.out)
    farm.workshop.build(*NAMES, options=OPTIONS)  # of the cache that what was collected is in
    assert made == tree(farm.workshop.out)


def test_two_users_share_fetched_wheels_and_with_a_key_everything(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.build(*NAMES)
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "another user"))
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)
    assert kinds(farm.build(*NAMES)) == {"cut", "pack"}
    (said,) = [event.text for event in farm.events if event.kind is EventKind.DISTRUSTED]
    assert "12 outputs of the store" in said and "TORCHTAILOR_STORE_KEY" in said
    monkeypatch.setenv("TORCHTAILOR_STORE_KEY", str(tmp_path / "key"))
    assert kinds(farm.build(*NAMES)) == {"cut", "pack"}
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "third user"))
    assert farm.build(*NAMES).outcomes == {}


def test_links_that_look_like_ours_lead_to_nothing_of_ours(tmp_path: Path) -> None:
    """In a folder that others can write to: removing what killed runs left must not follow them."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    (precious / "file").touch()
    shared = tmp_path / "shared"
    (shared / ".torchtailor-inner").mkdir(parents=True)
    (shared / ".torchtailor-inner" / "lock").symlink_to(precious / "lock")
    (shared / ".torchtailor-outer").symlink_to(precious)
    (shared / ".torchtailor-file.tmp").symlink_to(precious / "file")
    os.mkfifo(shared / ".torchtailor-pipe.tmp")
    remove_abandoned(shared)
    assert sorted(path.name for path in precious.iterdir()) == ["file", "lock"]
