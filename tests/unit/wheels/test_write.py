"""Written wheels are deterministic, whole or absent, and every other reader agrees with what is in them."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.wheels.builder import build_wheel
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.deflate import Effort
from torchtailor.trees.wheels.write import new_wheel

names = st.text(st.characters(whitelist_categories=("L", "N")), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40), deadline=None)
@given(st.dictionaries(names, st.binary(max_size=5000), max_size=8), st.sampled_from(Effort))
def test_round_trip(tmp_path: Path, files: dict[str, bytes], effort: Effort) -> None:
    path, source = tmp_path / "out.whl", tmp_path / "source"
    for _ in range(2):
        with new_wheel(path, effort=effort) as writer:
            for index, (name, data) in enumerate(files.items()):
                if index % 2:
                    source.write_bytes(data)
                    writer.add_file(name, source, stat.S_IFREG | 0o755)
                else:
                    writer.add_bytes(name, data)
        first = path.read_bytes()
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert list(files) == archive.namelist()
    if files:
        with WheelArchive(path) as own:
            assert {name: own.read(name) for name in own.members} == files
            assert [own.members[name].mode & 0o777 for name in files] == [
                0o755 if index % 2 else 0o644 for index in range(len(files))
            ]


@pytest.mark.parametrize("effort", Effort)
def test_large_file_in_pieces(tmp_path: Path, effort: Effort) -> None:
    data = os.urandom(3 << 20) + bytes(3 << 20) + b"abcdefgh" * (1 << 18)
    source, path = tmp_path / "big", tmp_path / "out.whl"
    source.write_bytes(data)
    with new_wheel(path, effort=effort) as writer:
        writer.add_bytes("first", b"1")
        writer.add_file("big.so", source)
        writer.add_bytes("last", b"2")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("big.so") == data
        assert archive.read("last") == b"2"
        assert archive.getinfo("big.so").compress_size < len(data) * 0.45


def test_copied_members_keep_their_packed_bytes_and_modes(tmp_path: Path) -> None:
    modes = {"demo/tool": stat.S_IFREG | 0o755}
    path = build_wheel(tmp_path, {"demo/": b"", "demo/a.py": b"x" * 9999, "demo/tool": b"#!"}, modes=modes)
    copy = tmp_path / "copy.whl"
    with WheelArchive(path) as archive, new_wheel(copy) as writer:
        for member in archive.members.values():
            writer.copy(archive, member, member.name)
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(copy) as after:
        assert after.testzip() is None
        for one, other in zip(before.infolist(), after.infolist(), strict=True):
            assert (one.filename, one.CRC, one.compress_size) == (other.filename, other.CRC, other.compress_size)
        assert after.getinfo("demo/tool").external_attr >> 16 == modes["demo/tool"]
        assert {info.date_time for info in after.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.slow
def test_zip64(tmp_path: Path) -> None:
    """A file over 4 GiB needs the wide forms; zipfile must read them."""
    path, source = tmp_path / "out.whl", tmp_path / "big"
    with source.open("wb") as file:
        file.truncate((4 << 30) + 5)  # sparse: takes no disk
    with new_wheel(path) as writer:
        writer.add_file("big", source)
        writer.add_bytes("last", b"2")
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("big").file_size == (4 << 30) + 5
        assert archive.read("last") == b"2"


def test_many_members_need_the_wide_table(tmp_path: Path) -> None:
    path = tmp_path / "out.whl"
    with new_wheel(path) as writer:
        for number in range(66_000):
            writer.add_bytes(str(number), b"")
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 66_000


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "out.whl"
    path.write_bytes(b"before")

    def fail() -> None:
        with new_wheel(path) as writer:
            writer.add_bytes("a", b"1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with new_wheel(tmp_path / "out.whl") as writer:
            writer.add_bytes("a", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "out.whl").stat().st_mode & 0o777 == 0o640
