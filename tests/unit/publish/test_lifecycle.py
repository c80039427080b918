"""The life of an index: listing, yanking, going back, promoting, pruning; a reader never meets a missing file."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop  # noqa: F401
from tests.unit.building.stack import fill
from tests.unit.fetch.serving import Site, serve
from tests.unit.publish.test_publish import check, files_of
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, ImpossibleError, NoMatchError
from torchtailor.core.store import FolderStore, open_store
from torchtailor.publish.dry_run import DryStore
from torchtailor.publish.lifecycle import (
    list_index,
    promote,
    prune,
    publish_recorded,
    read_pages,
    rollback,
    unyank,
    yank,
)
from torchtailor.surgery.cut import Cut

SM90 = "torch-2.8.0+cu128.sm90-cp313-cp313-manylinux_2_28_x86_64.whl"


@pytest.fixture(scope="module")
def made(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """An index with one target, and then a second one, and the wheelhouses in it; made once, copied by each test."""
    root = tmp_path_factory.mktemp("made")
    with serve(Site()) as running:
        one = Workshop(fill(running), catalog, root)
        one.build("sm90-avx512")
        publish_recorded(one.out, open_store(str(root / "public"), "--to"))
        one.build("sm80-avx2")
        publish_recorded(one.out, open_store(str(root / "public"), "--to"))
    return root


@pytest.fixture
def index(made: Path, workshop: Workshop, tmp_path: Path) -> Path:  # noqa: F811
    shutil.copytree(made / "public", tmp_path / "public")
    shutil.copytree(made / "dist", workshop.out)
    return tmp_path / "public"


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_every_change_is_a_generation(index: Path) -> None:
    listing = list_index(open_store(str(index), "--to"))
    assert [(one.number, one.action) for one in listing.generations] == [
        (1, "publish cu128-sm90"),
        (2, "publish cu128-sm80, cu128-sm90"),
    ]
    assert sorted(listing.pages) == ["cu128-sm80", "cu128-sm90"]
    assert SM90 in {file.filename for _, file in listing.files}


def test_what_is_yanked_says_so_on_both_pages_until_it_is_unyanked(index: Path, workshop: Workshop) -> None:  # noqa: F811
    store = open_store(str(index), "--to")
    done = yank(store, ["torch==2.8.0"], "wrong kernel")
    assert sorted(name.partition("/")[0] for name in done.changed) == ["cu128-sm80", "cu128-sm90"]
    assert files_of(index, "cu128-sm90")[SM90]["yanked"] == "wrong kernel"
    assert 'data-yanked="wrong kernel"' in (index / "cu128-sm90" / "torch" / "index.html").read_text()
    publish_recorded(workshop.out, store)  # publishing it again does not bring it back
    assert files_of(index, "cu128-sm90")[SM90]["yanked"] == "wrong kernel"
    assert unyank(store, [f"cu128-sm90/{SM90}"]).changed == (f"cu128-sm90/{SM90}",)
    assert files_of(index, "cu128-sm90")[SM90]["yanked"] is False
    assert "data-yanked" in (index / "cu128-sm80" / "torch" / "index.html").read_text()
    check(index)
    with pytest.raises(NoMatchError, match="no file 'numpy"):
        yank(store, ["numpy-*"], "")


class Interrupted(FolderStore):
    """Is killed before the second page of a folder is written, once."""

    def __init__(self, root: Path, folder: str) -> None:
        super().__init__(root)
        self._folder, self._left = folder, 1

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        if path.rpartition("/")[0] == self._folder:
            if self._left == 0:
                self._left = -1
                raise KeyboardInterrupt
            self._left -= 1
        super().put_bytes(content, path, content_type)


def test_a_kill_between_two_pages_is_repaired_by_the_same_command(index: Path) -> None:
    store = Interrupted(index, "cu128-sm90/torch")
    with pytest.raises(KeyboardInterrupt):
        yank(store, ["torch==2.8.0"], "wrong kernel")
    yank(store, ["torch==2.8.0"], "wrong kernel")
    assert files_of(index, "cu128-sm90")[SM90]["yanked"] == "wrong kernel"
    assert 'data-yanked="wrong kernel"' in (index / "cu128-sm90" / "torch" / "index.html").read_text()
    listed = (index / "cu128-sm80" / "index.html").read_bytes()
    store = Interrupted(index, "cu128-sm80")
    with pytest.raises(KeyboardInterrupt):
        rollback(store, "1")
    rollback(store, "1")
    assert b"torch" not in (index / "cu128-sm80" / "index.html").read_bytes()
    assert b"torch" in listed
    check(index)


def test_going_back_and_forth_gives_the_same_pages(index: Path) -> None:
    store = open_store(str(index), "--to")
    both = read_pages(store)
    back = rollback(store, "1")
    assert [name.partition("/")[0] for name in back.changed] == ["cu128-sm80"] * len(back.changed)
    assert json.loads((index / "targets.json").read_text()) == ["cu128-sm90"]
    assert (index / "cu128-sm80" / "torch" / "index.html").is_file()  # empty, not gone: its readers find an answer
    assert files_of(index, "cu128-sm80") == {}
    rollback(store, "previous")
    assert read_pages(store) == both
    assert [one.number for one in list_index(store).generations] == [1, 2, 3, 4]
    check(index)
    with pytest.raises(NoMatchError, match="no generation 9"):
        rollback(store, "9")


def test_promotion_adds_and_takes_nothing_away(index: Path, workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    live = tmp_path / "live"
    workshop.build("cpu-armv9")
    cpu = next(path for path in workshop.out.iterdir() if "cpu" in path.name)
    publish_recorded(cpu, open_store(str(live), "--to"))
    done = promote(open_store(str(index), "--to"), open_store(str(live), "--to"))
    assert done.copied_bytes > 0
    assert json.loads((live / "targets.json").read_text()) == ["cpu", "cu128-sm80", "cu128-sm90"]
    assert files_of(live, "cu128-sm90") == files_of(index, "cu128-sm90")
    check(live)
    again = promote(open_store(str(index), "--to"), open_store(str(live), "--to"))
    assert (again.changed, again.copied_bytes) == ((), 0)
    remote = open_store("memory://promoted", "--to")
    promote(open_store(str(live), "--to"), remote)
    assert sorted(read_pages(remote)) == ["cpu", "cu128-sm80", "cu128-sm90"]
    assert list_index(remote).generations[-1].action == "promote"
    with pytest.raises(NoMatchError, match="empty"):
        promote(open_store(str(tmp_path / "nothing"), "--to"), remote)


def test_promotion_does_not_offer_again_what_was_yanked(index: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    promote(open_store(str(index), "--to"), open_store(str(live), "--to"))
    yank(open_store(str(live), "--to"), [f"cu128-sm90/{SM90}"], "wrong kernel")
    yank(open_store(str(index), "--to"), ["cu128-sm80/torch-*"], "too slow")
    promote(open_store(str(index), "--to"), open_store(str(live), "--to"))
    for target, reason in (("cu128-sm90", "wrong kernel"), ("cu128-sm80", "too slow")):
        (torch,) = (file for name, file in files_of(live, target).items() if name.startswith("torch-"))
        assert torch["yanked"] == reason
        assert f'data-yanked="{reason}"' in (live / target / "torch" / "index.html").read_text()


def test_changed_nvidia_wheels_are_not_promoted_away(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True)))
    own = open_store(str(tmp_path / "own"), "--to")
    publish_recorded(workshop.out, own)
    away = open_store("memory://elsewhere", "--to")
    with pytest.raises(ImpossibleError, match="changed NVIDIA libraries"):
        promote(own, away)
    assert read_pages(away) == {}
    promote(own, away, nvidia_too=True)
    promote(own, open_store(str(tmp_path / "second"), "--to"))  # from one own folder to another


def test_pruning_keeps_what_a_page_or_a_kept_generation_lists(index: Path) -> None:
    store = open_store(str(index), "--to")
    rollback(store, "1")
    everything = tree(index / "files")
    assert prune(store, grace=0).removed == ()  # generation 2 is kept, and lists them
    assert tree(index / "files") == everything
    assert prune(store, keep=1, grace=3600).removed == ()  # a reader may still hold the page
    rollback(store, "3")
    done = prune(store, keep=1, grace=0)
    gone = {Path(path).name for path in done.removed}
    assert {name for name in gone if name.endswith(".whl")}
    assert not any("sm90" in name for name in gone)
    assert done.removed_bytes == sum(len(everything[path.removeprefix("files/")]) for path in done.removed)
    check(index)
    assert len(list_index(store).generations) == 1
    with pytest.raises(NoMatchError):
        rollback(store, "2")


def test_pruning_keeps_what_a_page_lists_that_a_lost_update_left_out(index: Path) -> None:
    later = time.time() + 7 * 24 * 3600
    (index / "targets.json").write_text('["cu128-sm90"]')
    (index / "docs" / "api").mkdir(parents=True)
    (index / "docs" / "api" / "index.json").write_text('{"of": "somebody else"}')
    assert prune(open_store(str(index), "--to"), keep=1, now=later).removed == ()
    remote = open_store("memory://pruned", "--to")
    promote(open_store(str(index), "--to"), remote)
    remote.put_bytes(b"[]", "targets.json")
    assert prune(remote, keep=1, now=later).removed == ()


def test_a_generation_whose_files_are_gone_is_refused(index: Path) -> None:
    store = open_store(str(index), "--to")
    rollback(store, "1")
    before = tree(index / "cu128-sm80")
    next((index / "files").rglob("torch-*sm80*.whl")).unlink()
    with pytest.raises(ImpossibleError, match="not stored any more"):
        rollback(store, "2")
    assert tree(index / "cu128-sm80") == before


def read_everything(root: Path) -> int:
    """As an installer does: the top page, the targets', the projects', and every file that they list."""
    count = 0
    for target in json.loads((root / "targets.json").read_text()):
        for row in json.loads((root / target / "index.json").read_text())["projects"]:
            page = root / target / row["name"] / "index.json"
            for file in json.loads(page.read_text())["files"]:
                if file["url"].startswith("http"):
                    continue
                data = (page.parent / unquote(file["url"])).read_bytes()
                assert hashlib.sha256(data).hexdigest() == file["hashes"]["sha256"]
                count += 1
    return count


@contextmanager
def reading(root: Path) -> Iterator[list[BaseException]]:
    """A reader in a loop beside what is done."""
    stop, failures, rounds = threading.Event(), [], 0

    def loop() -> None:
        nonlocal rounds
        while not stop.is_set():
            try:
                read_everything(root)
                rounds += 1
            except BaseException as error:
                failures.append(error)
                return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join()
    assert rounds > 0


def test_a_reader_in_a_loop_never_meets_a_broken_index(index: Path, workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    store = open_store(str(index), "--to")
    steps: list[Callable[[], object]] = [
        lambda: yank(store, ["torch==2.8.0"], "bad"),
        lambda: rollback(store, "1"),
        lambda: prune(store, grace=60),
        lambda: rollback(store, "2"),
        lambda: publish_recorded(workshop.out, store),
        lambda: unyank(store, ["torch-*"]),
        lambda: promote(open_store(str(index), "--to"), open_store(str(tmp_path / "live"), "--to")),
        lambda: prune(store, keep=1, grace=60),
    ]
    with reading(index) as failures:
        for step in steps * 2:
            if failures:
                break
            try:
                step()
            except NoMatchError:
                assert step in (steps[1], steps[3])  # those generations were pruned
    assert failures == []


class Watched(FolderStore):
    """Reads the whole index after every single write and removal."""

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        super().put_bytes(content, path, content_type)
        read_everything(self.root)

    def remove(self, path: str) -> None:
        super().remove(path)
        read_everything(self.root)


def test_the_index_is_whole_after_every_single_write(index: Path) -> None:
    store = Watched(index)
    yank(store, ["torch-*"], "bad")
    rollback(store, "1")
    rollback(store, "2")
    rollback(store, "1")
    assert prune(store, keep=1, grace=0).removed


def test_a_dry_run_tells_exactly_what_then_happens(index: Path, workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    before = tree(index)
    workshop.build("sm120-avx2")
    planned = publish_recorded(workshop.out, DryStore.of(str(index)))
    assert tree(index) == before
    assert planned == publish_recorded(workshop.out, open_store(str(index), "--to"))
    assert planned.uploaded > 0
    new = tmp_path / "not-there-yet"
    assert publish_recorded(workshop.out, DryStore.of(str(new))).uploaded > planned.uploaded
    assert not new.exists()
    dry = rollback(DryStore.of(str(index)), "1")
    assert dry.changed == rollback(open_store(str(index), "--to"), "1").changed


def test_the_command(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = ["--to", str(index)]
    assert main(["publish", *to, "--list"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "cu128-sm90" in out and "publish cu128-sm90" in out
    assert main(["publish", *to, "--yank", "torch==2.8.0", "--reason", "slow", "--dry-run"]) == ExitCode.OK
    assert "would be changed" in capsys.readouterr().out
    assert "data-yanked" not in (index / "cu128-sm90" / "torch" / "index.html").read_text()
    assert main(["publish", *to, "--yank", "torch==2.8.0", "--reason", "slow", "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["generation"]) == ("torchtailor-publish-change/1", 3)
    assert main(["publish", *to, "--rollback", "previous"]) == ExitCode.OK
    assert "generation 4" in capsys.readouterr().out
    assert main(["publish", *to, "--prune", "--keep", "1", "--grace", "0s"]) == ExitCode.OK
    assert main(["publish", *to, "--list", "--prune"]) == ExitCode.USAGE
    assert main(["publish", "--to", str(index.parent / "none"), "--list"]) == ExitCode.NO_MATCH
    assert not (index.parent / "none").exists()


def test_a_login_is_not_printed(index: Path, workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    to = ["--to", "memory://u:secret@x"]
    for words in ([str(workshop.out), *to], [*to, "--list"], [*to, "--yank", "torch==2.8.0"], [*to, "--yank", "x"]):
        main(["publish", *words, "--json"])
        captured = capsys.readouterr()
        assert "secret" not in captured.out + captured.err
    assert main(["publish", *to, "--list", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["to"] == "memory://****@x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to X --keep 3", "--keep is for --prune alone."),
        ("--to X --grace 2d", "--grace is for --prune alone."),
        ("--to X --reason slow", "--reason is for --yank alone."),
        ("--to X --unyank torch==2.8.0 --reason slow", "--reason is for --yank alone."),
        ("--to X --variant sm90", "--variant is for --flox alone."),
        ("--to X --flox ORG", "Give either --to or --flox."),
        ("", "No destination was given."),
    ],
)
def test_options_that_would_be_ignored_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", *words.split()]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert not Path("X").exists()
