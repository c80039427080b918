"""Folders and single files: a whole new copy, and the original as it was."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import ARCH, BASE_FLAGS, Entry, Place, container, elf
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.folder import tailor_file, tailor_folder


@pytest.fixture
def folder(tmp_path: Path, fat: bytes) -> Path:
    root = tmp_path / "stock"
    (root / "lib" / "empty").mkdir(parents=True)
    (root / "lib" / "libx.so.1").write_bytes(fat)
    (root / "lib" / "libx.so.1").chmod(0o755)
    (root / "lib" / "libx.so").symlink_to("libx.so.1")
    os.link(root / "lib" / "libx.so.1", root / "lib" / "libsame.so")
    (root / "lib" / "dangling").symlink_to("nowhere")
    (root / "link").symlink_to("lib")
    (root / "notes.txt").write_text("text")
    (root / "libcublas.so.12").write_bytes(fat)
    return root


def test_copy(tmp_path: Path, folder: Path, fat: bytes) -> None:
    before = tree(folder)
    out = tmp_path / "out"
    outcome = tailor_folder(folder, out, options())
    assert tree(folder) == before
    after = tree(out)
    document = json.loads((out / "torchtailor.json").read_text())
    changed = {name for name, digest in after.items() if digest != before.get(name)}
    assert changed == {"lib/libx.so.1", "lib/libsame.so", "torchtailor.json"}
    assert set(before) <= set(after)
    assert (out / "lib" / "libx.so.1").stat().st_mode & 0o777 == 0o755
    assert (out / "lib" / "libsame.so").samefile(out / "lib" / "libx.so.1")
    assert (out / "lib" / "empty").is_dir()
    assert {row["path"]: row["status"] for row in document["libraries"]} == {
        "lib/libsame.so": "cut",
        "libcublas.so.12": "needs-nvidia-option",
    }
    assert outcome.could_save > 0
    assert outcome.size_before - outcome.size_after == len(fat) - (out / "lib" / "libx.so.1").stat().st_size


def test_writing_to_the_copy_never_changes_the_original(tmp_path: Path, folder: Path) -> None:
    before = tree(folder)
    tailor_folder(folder, tmp_path / "out", options())
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"changed")
    assert tree(folder) == before


def test_records_in_the_copy(tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, {"demo/lib/libx.so": fat, "demo/a.py": b"1"}), site)
    tailor_folder(tmp_path / "env", tmp_path / "out", options())
    check_records(tmp_path / "out" / "lib" / "python3.13" / "site-packages")
    check_records(site)


@pytest.mark.parametrize(
    ("size", "age", "other", "known"),
    [
        (0, 1, None, True),
        (0, 0, None, False),  # as old as RECORD: files of one moment may have been changed after it
        (0, -1, None, False),
        (1, 1, None, False),
        (0, 1, "", True),  # a second package has the same file
        (0, 1, "else", False),  # it has another one
    ],
)
def test_the_hash_in_record_is_that_of_a_file_which_nobody_changed_since(
    tmp_path: Path, fat: bytes, size: int, age: int, other: str | None, known: bool
) -> None:
    site = "record/libx.so"
    install(build_wheel(tmp_path, {site: fat}, name="record"), tmp_path / "env")
    if other is not None:
        install(build_wheel(tmp_path, {site: bytes(len(fat)) if other else fat}, name="other"), tmp_path / "env")
    changed = fat + bytes(size) if size else fat[:-1] + b"x"  # which no check of a cut can know to be wrong
    (tmp_path / "env" / site).write_bytes(changed)
    for record in (tmp_path / "env").glob("*.dist-info/RECORD"):
        os.utime(record, ns=(10**18, 10**18))
    os.utime(tmp_path / "env" / site, ns=(10**18 - age, 10**18 - age))
    tailor_folder(tmp_path / "env", tmp_path / "out", options())
    (row,) = json.loads((tmp_path / "out" / "torchtailor.json").read_text())["libraries"]
    assert row["sha256_before"] == hashlib.sha256(fat if known else changed).hexdigest()
    assert row["sha256_after"] == hashlib.sha256((tmp_path / "out" / site).read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["hard", "symbolic", "folder"])
def test_records_of_a_library_with_two_names(tmp_path: Path, fat: bytes, kind: str) -> None:
    site = tmp_path / "env"
    first, second = ("links/liba.so", "links/libb.so") if kind != "folder" else ("links/liba.so", "other/liba.so")
    install(build_wheel(tmp_path, {first: fat, second: fat, "links/a.py": b"1"}, name="links"), site)
    (site / second).unlink()
    if kind == "hard":
        (site / second).hardlink_to(site / first)
    elif kind == "symbolic":
        (site / second).symlink_to("liba.so")
    else:
        (site / "other").rmdir()
        (site / "other").symlink_to("links")
    tailor_folder(site, tmp_path / "out", options())
    assert (tmp_path / "out" / second).samefile(tmp_path / "out" / first)
    assert (tmp_path / "out" / first).stat().st_size < len(fat)
    check_records(tmp_path / "out")
    check_records(site)


def test_a_link_to_the_stock_library_is_recorded_as_it_is(tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "env"
    install(build_wheel(tmp_path, {"links/liba.so": fat, "links/libb.so": fat}, name="links"), site)
    (site / "links/libb.so").unlink()
    (site / "links/libb.so").symlink_to(site / "links/liba.so")
    tailor_folder(site, tmp_path / "out", options())
    assert (tmp_path / "out/links/libb.so").read_bytes() == fat
    check_records(tmp_path / "out")


def test_places(tmp_path: Path, folder: Path) -> None:
    for bad in (folder, folder / "lib" / "out", tmp_path / "stock" / "x"):
        with pytest.raises(UsageError):
            tailor_folder(folder, bad, options())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError, match="already exists"):
        tailor_folder(folder, tmp_path / "full", options())
    (tmp_path / "empty").mkdir()
    tailor_folder(folder, tmp_path / "empty", options())
    with pytest.raises(NoMatchError):
        tailor_folder(tmp_path / "none", tmp_path / "out2", options())


def test_dry_run(tmp_path: Path, folder: Path) -> None:
    before = tree(tmp_path)
    outcome = tailor_folder(folder, tmp_path / "a" / "out", options(dry_run=True))
    assert outcome.changed
    assert tree(tmp_path) == before
    assert not (tmp_path / "a").exists()


def test_a_pipe_in_the_folder(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadInputError, match="neither a file nor a folder"):
        tailor_folder(folder, tmp_path / "out", options())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stock"]


def test_one_file(tmp_path: Path, fat: bytes) -> None:
    library = tmp_path / "libx.so"
    library.write_bytes(fat)
    outcome = tailor_file(library, tmp_path / "new" / "liby.so", options())
    assert outcome.output == tmp_path / "new" / "liby.so"
    assert outcome.output.stat().st_size < len(fat) == library.stat().st_size
    document = json.loads((tmp_path / "new" / "liby.so.torchtailor.json").read_text())
    assert document["input"]["name"] == "libx.so"
    with pytest.raises(UsageError, match="same file"):
        tailor_file(library, tmp_path, options())


def test_one_file_with_nothing_to_cut_is_copied(tmp_path: Path, zstd: bytes) -> None:
    library = tmp_path / "libx.so"
    library.write_bytes(zstd)
    outcome = tailor_file(library, tmp_path / "out.so", options(strip=False))
    assert outcome.libraries[0].status is LibraryStatus.UNCHANGED
    assert (tmp_path / "out.so").read_bytes() == zstd


def test_a_dry_run_leaves_an_earlier_output(tmp_path: Path) -> None:
    """Of a library without GPU code only the symbol tables could go."""
    source = tmp_path / "libhost.so"
    source.write_bytes(library(Recipe()))
    (tmp_path / "out").mkdir()
    tailor_file(source, tmp_path / "out", options())
    before = tree(tmp_path)
    outcome = tailor_file(source, tmp_path / "out", options(dry_run=True))
    assert outcome.libraries[0].status is LibraryStatus.NO_GPU_CODE
    assert tree(tmp_path) == before


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF", b"\x7fELF" + bytes(100)])
def test_one_file_that_is_none(tmp_path: Path, data: bytes) -> None:
    library = tmp_path / "libx.so"
    library.write_bytes(data)
    with pytest.raises(BadInputError):
        tailor_file(library, tmp_path / "out.so", options())
    assert [path.name for path in tmp_path.iterdir()] == ["libx.so"]


def _cubin_without_kernels() -> bytes:
    """A whole ELF file that holds no `.text.` section, as vllm's libraries have them."""
    return elf(Place(".nv.info", bytes(8_000)), machine=190)


def test_cubins_without_kernels(tmp_path: Path) -> None:
    """vllm 0.32 and sgl-kernel 0.3.21 hold such images for 9.0 beside 9.0a: nothing is lost with them."""
    images = [Entry(_cubin_without_kernels(), sm=sm) for sm in (75, 80, 86, 90)]
    images.append(Entry(_cubin_without_kernels(), sm=90, flags=BASE_FLAGS | ARCH))
    library = tmp_path / "libx.so"
    library.write_bytes(elf(Place(".nv_fatbin", container(*images))))
    outcome = tailor_file(library, tmp_path / "out.so", options())
    assert outcome.libraries[0].status is LibraryStatus.CUT


def test_dropped_files_are_gone_from_the_copy_and_its_records(tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "site-packages"
    install(build_wheel(tmp_path, {"demo/libx.so": fat, "demo/libx.a": b"!<arch>", "demo/a.py": b""}), site)
    (site / "demo" / "liby.a").symlink_to("libx.a")
    outcome = tailor_folder(site, tmp_path / "out", options(drop=("static-libs",)))
    assert {file.path for file in outcome.dropped_files} == {"demo/libx.a", "demo/liby.a"}
    assert sorted(path.name for path in (tmp_path / "out" / "demo").iterdir()) == ["a.py", "libx.so"]
    check_records(tmp_path / "out")
    document = json.loads((tmp_path / "out" / "torchtailor.json").read_text())
    assert [file["rule"] for file in document["dropped_files"]] == ["static-libs"] * 2
    assert tree(site)["demo/libx.a"] and not (tmp_path / "out" / "demo" / "libx.a").exists()
