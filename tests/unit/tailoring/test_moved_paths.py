"""Files that were never opened and lie beside the packs: programs, uninstallers and `restore` find them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.in_place import InPlace
from torchtailor.tailoring.journal import STATE_FOLDER
from torchtailor.tailoring.moved_paths import MovedPath
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.wheels.record import Record, RecordRow
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace, write_trace

LARGE = bytes(70_000)
FILES = {
    "demo/__init__.py": b"",
    "demo/include/a.h": b"// a",
    "demo/include/deep/b.h": b"// b",
    "demo/share/used.h": b"// used",
    "demo/share/other.h": b"// other",
    "demo/data.bin": LARGE,
    "demo/small.txt": b"stays",
}
MOVED = {"demo/include": True, "demo/share/other.h": False, "demo/data.bin": False}  # and whether it is a folder
PACKS = "torchtailor-packs/demo/files"


def chosen(fat_name: str = "demo/lib/libdemo.so", **more: object) -> Cut:
    workload = TracedWorkload(Trace(opened=(fat_name, "demo/share/used.h")))
    return replace(options(), workload=workload, drop_unopened=True, **more)  # type: ignore[arg-type]


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    return build_wheel(tmp_path, {**FILES, "demo/lib/libdemo.so": fat}, name="demo", version="1.0")


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    return site


def read(site: Path, names: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    return {name: (site / name).read_bytes() for name in names}


def links(site: Path) -> dict[str, bool]:
    return {name: (site / name).is_dir() for name in MOVED if (site / name).is_symlink()}


@pytest.mark.parametrize("kind", ["folder", "environment"])
def test_moved(tmp_path: Path, site: Path, kind: str) -> None:
    if kind == "folder":
        result = tailor_folder(site, out := tmp_path / "out", chosen())
    else:
        result = tailor_environment(out := site, chosen())
    assert links(out) == MOVED
    assert read(out) == FILES
    assert {path.name for path in (out / PACKS / "demo").iterdir()} == {"include", "share", "data.bin"}
    assert {one.path: one.is_folder for one in result.moved_files} == MOVED
    assert sum(one.files for one in result.moved_files) == 4
    assert result.dropped_files == ()
    check_records(out)
    rows = {row.path: row for row in Record.parse((out / "demo-1.0.dist-info/RECORD").read_bytes())}
    assert rows["demo/include"].hash is None
    assert rows[f"{PACKS}/demo/data.bin"].hash == rows["demo/data.bin"].hash


def on_disk(folder: Path) -> int:
    """Bytes of files that the sizes of a result speak of: hooks, finders and what torchtailor keeps are not counted."""
    ours = ("libtorchtailor-hook.so.1", "modules.py", "torchtailor.json")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    files = [path for path in files if STATE_FOLDER not in path.parts]
    return sum(path.stat().st_size for path in files if path.name not in ours and path.suffix not in (".pth", ".names"))


@pytest.mark.parametrize("kind", ["folder", "environment"])
def test_the_sizes_are_those_on_disk_with_packs_and_without(
    tmp_path: Path, site: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "0 B of disk were freed" stood beside "Saved 537 MB": packs take room, too."""
    (site / "demo/never.py").write_text("value = 1\n" * 20_000)
    with (site / "demo-1.0.dist-info/RECORD").open("a") as record:
        record.write("demo/never.py,,\n")
    before = on_disk(site)
    trace = tmp_path / "app.trace"
    write_trace(trace, Trace(opened=("demo/lib/libdemo.so", "demo/share/used.h", "demo/__init__.py")))
    where = ["-o", str(tmp_path / "out"), str(site)] if kind == "folder" else ["--env", str(site)]
    line = ["tailor", "--gpu", "9.0", "--workload", str(trace), "--drop-unopened", *where]
    assert main([*line, "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Would move 1 module of 200 kB that was never imported to packs." in told and "without its packs" in told
    assert main([*line, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["inputs"]
    out = tmp_path / "out" if kind == "folder" else site
    rows = 2 << 10  # of RECORDs
    assert abs(row["size_before"] - before) < rows and abs(row["size_after"] - on_disk(out)) < rows
    names = [*out.glob("torchtailor-packs/demo/*.*pack"), *out.glob("torchtailor-packs/demo/*.zip")]
    packs = sum(path.stat().st_size for path in names) + on_disk(out / PACKS)
    assert row["packs_size"] == packs > 70_000


def test_restore(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, chosen(keep_removed=True))
    again = tailor_environment(site, chosen(keep_removed=True))
    assert (again.moved_files, again.changed, links(site), read(site)) == ((), (), MOVED, FILES)  # nor its own hook
    restore_environment(site)
    assert tree(site) == before
    assert not (site / "torchtailor-packs").exists()


def test_links_go_back_also_where_what_was_cut_out_was_not_kept(site: Path) -> None:
    tailor_environment(site, chosen())
    restore_environment(site)
    assert (links(site), read(site)) == ({}, FILES)


def test_a_dry_run_moves_nothing(site: Path) -> None:
    before = tree(site)
    assert len(tailor_environment(site, chosen(dry_run=True)).moved_files) == 3
    assert tree(site) == before


def test_what_is_left_out_for_good(tmp_path: Path, site: Path, wheel: Path) -> None:
    """Without packs, by a rule, and in a wheel, which cannot hold links."""
    result = tailor_folder(site, tmp_path / "out", chosen(no_pack=True))
    assert (result.moved_files, len(result.dropped_files)) == ((), 4)
    tailor_folder(site, tmp_path / "headers", chosen(drop=("headers",)))
    assert not (tmp_path / "headers/demo/include/a.h").exists()
    assert links(tmp_path / "headers") == {"demo/data.bin": False, "demo/share/other.h": False}
    tailored = tailor_wheel(wheel, tmp_path / "wheels", chosen())
    assert len(tailored.dropped_files) == 4


def test_a_folder_that_holds_something_else_stays_one(site: Path) -> None:
    """What another package or a user has there does not move, nor do links, which would lead elsewhere."""
    for name in ("a", "b", "c"):
        (site / f"demo/{name}").mkdir()
    headers = {"demo/a/one.h": b"1", "demo/b/two.h": b"2", "demo/c/three.h": b"3"}
    record = site / "demo-1.0.dist-info/RECORD"
    for name, data in headers.items():
        (site / name).write_bytes(data)
        record.write_text(f"{name},,\n{record.read_text()}")
    install(build_wheel(site.parent, {"demo/a/other.h": b"4", "demo/b/other.py": b""}, name="other"), site)
    (site / "demo/c/mine.txt").write_text("a user's")
    (site / "demo/b/up").symlink_to("../share")
    tailor_environment(site, chosen())
    for name, data in headers.items():
        assert (site / name).is_symlink(), name
        assert (site / name).read_bytes() == data
        assert not (site / name).parent.is_symlink()
    assert (site / "demo/b/up/used.h").read_bytes() == b"// used"
    check_records(site)


def test_stopped_between_moving_and_linking(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(site)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", stopped)
        with pytest.raises(KeyboardInterrupt):
            tailor_environment(site, chosen(keep_removed=True))
    assert not os.path.lexists(site / "demo/data.bin") or not os.path.lexists(site / "demo/include")
    tailor_environment(site, chosen(keep_removed=True))
    assert (links(site), read(site)) == (MOVED, FILES)
    restore_environment(site)
    assert tree(site) == before


def test_stopped_before_anything_was_moved(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(InPlace, "settle", lambda _: None)
        patch.setattr(MovedPath, "move", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tailor_environment(site, chosen())
    restore_environment(site)
    assert (links(site), read(site)) == ({}, FILES)


def test_installed_again_and_cut_again(site: Path, wheel: Path) -> None:
    """What is left beside the packs of an installation that somebody removed by hand does not hinder."""
    tailor_environment(site, chosen())
    (site / "demo/include").unlink()
    (site / "demo/data.bin").unlink()
    install(wheel, site)
    tailor_environment(site, chosen())
    assert (links(site), read(site)) == (MOVED, FILES)
    check_records(site)


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(NAMES, st.sampled_from([".h", ".txt", ".pyi", ".a"]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES, st.sets(NAMES))
def test_every_file_is_where_it_was(fat: bytes, names: dict[str, str], opened: set[str]) -> None:
    """Of any package: through links each path has its bytes, and `restore` leaves no trace."""
    files = {f"demo/{name}{suffix}": name.encode() for name, suffix in names.items()}
    trace = Trace(opened=("demo/lib/libdemo.so", *(path for path in files if path[5:].partition(".")[0] in opened)))
    cut = replace(options(), workload=TracedWorkload(trace), drop_unopened=True, keep_removed=True)
    with tempfile.TemporaryDirectory() as name:
        site = Path(name, "site-packages")
        install(build_wheel(Path(name), {**files, "demo/lib/libdemo.so": fat}, name="demo"), site)
        before = tree(site)
        tailor_environment(site, cut)
        assert read(site, files) == files
        check_records(site)
        restore_environment(site)
        assert tree(site) == before


def test_the_last_row_of_a_record_can_go() -> None:
    record = Record([RecordRow("demo/a.py"), RecordRow("demo/include")])
    assert [row.path for row in record.updated({"demo/include": None})] == ["demo/a.py"]
